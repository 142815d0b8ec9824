// Each pass reads the row once, 4 bytes per token: from L2 after the first one for vocabularies up
// to about 128 000. Candidates within 28 nats of the best one are compacted here, so that
// everything that follows works on tens or hundreds of tokens instead of the vocabulary.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/sampling_passes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr std::size_t kSumPart = 4096;

internal::LogitScan Scan(const float* z, std::size_t count) {
  const DF d;
  VF max = hn::Set(d, -kInfinity);
  // NaN compares false, too.
  auto bad = hn::Lt(max, max);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF x = hn::LoadU(d, z + i);
    bad = hn::Or(bad, hn::Not(hn::Le(x, hn::Set(d, kLargest))));
    max = hn::Max(max, x);
  }
  internal::LogitScan scan{hn::GetLane(hn::MaxOfLanes(d, max)), !hn::AllFalse(d, bad)};
  for (; i < count; ++i) {
    scan.non_finite = scan.non_finite || !(z[i] <= kLargest);
    scan.max = std::max(scan.max, z[i]);
  }
  return scan;
}

HWY_INLINE float SumPart(const float* z, std::size_t count, float max) {
  const DF d;
  const VF m = hn::Set(d, max);
  VF sum[kRegisters];
  for (std::size_t c = 0; c < kRegisters; ++c) sum[c] = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kVirtualLanes <= count; i += kVirtualLanes) {
    for (std::size_t c = 0; c < kRegisters; ++c) {
      sum[c] = hn::Add(sum[c], Exp(hn::Sub(hn::LoadU(d, z + i + c * kLanes), m)));
    }
  }
  HWY_ALIGN float lanes[kVirtualLanes];
  std::fill(lanes, lanes + kVirtualLanes, -kInfinity);
  std::copy(z + i, z + count, lanes);
  for (std::size_t c = 0; c < kRegisters; ++c) {
    const VF tail = Exp(hn::Sub(hn::Load(d, lanes + c * kLanes), m));
    hn::Store(hn::Add(sum[c], tail), d, lanes + c * kLanes);
  }
  return SumLanes(lanes);
}

double SumExp(const float* z, std::size_t count, float max) {
  double total = 0;
  for (std::size_t i = 0; i < count; i += kSumPart) {
    total += static_cast<double>(SumPart(z + i, std::min(kSumPart, count - i), max));
  }
  return total;
}

HWY_INLINE VF ScaleFinite(VF x, VF factor) {
  const DF d;
  const VF scaled =
      hn::Min(hn::Max(hn::Mul(x, factor), hn::Set(d, -kLargest)), hn::Set(d, kLargest));
  const VF nothing = hn::Set(d, -kInfinity);
  return hn::IfThenElse(hn::Eq(x, nothing), nothing, scaled);
}

float Scale(float* x, std::size_t count, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  VF max = hn::Set(d, -kInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF y = ScaleFinite(hn::LoadU(d, x + i), f);
    hn::StoreU(y, d, x + i);
    max = hn::Max(max, y);
  }
  HWY_ALIGN float tail[kLanes];
  std::fill(tail, tail + kLanes, -kInfinity);
  std::copy(x + i, x + count, tail);
  const VF y = ScaleFinite(hn::Load(d, tail), f);
  hn::Store(y, d, tail);
  std::copy(tail, tail + (count - i), x + i);
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max, y)));
}

std::size_t Collect(const float* x, internal::IdRange range, float cut, std::int32_t* ids,
                    float* values) {
  const DF d;
  const VF border = hn::Set(d, cut);
  std::size_t kept = 0;
  std::size_t i = range.begin;
  while (i < range.end) {
    const std::size_t end = std::min(range.end, i + kLanes);
    if (end - i == kLanes && hn::AllFalse(d, hn::Ge(hn::LoadU(d, x + i), border))) {
      i = end;
      continue;
    }
    for (; i < end; ++i) {
      if (!(x[i] >= cut)) continue;
      ids[kept] = static_cast<std::int32_t>(i);
      values[kept] = x[i];
      ++kept;
    }
  }
  return kept;
}

void ExpOf(const float* x, std::size_t count, float max, float* w) {
  const DF d;
  const VF m = hn::Set(d, max);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(Exp(hn::Sub(hn::LoadU(d, x + i), m)), d, w + i);
  }
  HWY_ALIGN float tail[kLanes] = {};
  std::copy(x + i, x + count, tail);
  hn::Store(Exp(hn::Sub(hn::Load(d, tail), m)), d, tail);
  std::copy(tail, tail + (count - i), w + i);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(Scan);
HWY_EXPORT(SumExp);
HWY_EXPORT(Scale);
HWY_EXPORT(Collect);
HWY_EXPORT(ExpOf);

namespace internal {

LogitScan ScanLogits(const float* z, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(Scan)(z, count);
}
double SumOfExp(const float* z, std::size_t count, float max) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(z, count, max);
}
float ScaleLogits(float* x, std::size_t count, float factor) {
  return HWY_DYNAMIC_DISPATCH(Scale)(x, count, factor);
}
std::size_t CollectAtLeast(const float* x, IdRange range, float cut, std::int32_t* ids,
                           float* values) {
  return HWY_DYNAMIC_DISPATCH(Collect)(x, range, cut, ids, values);
}
void ExpMinus(const float* x, std::size_t count, float max, float* w) {
  HWY_DYNAMIC_DISPATCH(ExpOf)(x, count, max, w);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
