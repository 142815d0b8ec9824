// Each pass reads the row once, 4 bytes per token. After the first pass the row is in L2 for
// vocabularies of up to about 128 000 tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/philox.h"
#include "kernels/backend/exact_math.h"
#include "kernels/sampling/sampling_passes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/sampling_simd.cc"
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
  // All lanes start as false. Not(Le) below is true for NaN too, because NaN compares false.
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

// Computes the moments of a stripe. The compiler vectorizes the loop over adjacent lanes. The
// product of two floats is exact in f64, so fused and separate operations give the same sum.
internal::Moments StripeMoments(const float* x, std::size_t count) {
  constexpr std::size_t kStep = internal::kSigmaLanes;
  constexpr std::size_t kGroupLanes = internal::kSigmaGroup;
  alignas(64) double sums[kStep] = {};
  alignas(64) double squares[kStep] = {};
  std::uint64_t finite = 0;
  for (std::size_t at = 0; at < count; at += kStep) {
    const std::size_t lanes = std::min(kStep, count - at);
    std::uint32_t in_step = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const float value = x[at + lane];
      const double added = value > -kInfinity ? static_cast<double>(value) : 0.0;
      sums[lane] += added;
      squares[lane] += added * added;
      in_step += value > -kInfinity ? 1u : 0u;
    }
    finite += in_step;
  }
  internal::Moments moments{.count = finite};
  for (std::size_t group = 0; group < kStep; group += kGroupLanes) {
    for (std::size_t half = kGroupLanes / 2; half > 0; half /= 2) {
      for (std::size_t lane = group; lane < group + half; ++lane) {
        sums[lane] += sums[lane + half];
        squares[lane] += squares[lane + half];
      }
    }
    moments.sum += sums[group];
    moments.squares += squares[group];
  }
  return moments;
}

internal::Moments RowMoments(const float* x, std::size_t count) {
  const std::size_t length =
      internal::StripeLength(static_cast<std::uint32_t>(count), internal::kSigmaStripes);
  internal::Moments moments;
  for (std::size_t begin = 0; begin < count; begin += length) {
    const internal::Moments stripe = StripeMoments(x + begin, std::min(length, count - begin));
    moments.sum += stripe.sum;
    moments.squares += stripe.squares;
    moments.count += stripe.count;
  }
  return moments;
}

std::size_t Find(const float* x, std::size_t count, float value) {
  const DF d;
  const VF wanted = hn::Set(d, value);
  std::size_t i = 0;
  while (i + kLanes <= count && hn::AllFalse(d, hn::Eq(hn::LoadU(d, x + i), wanted))) i += kLanes;
  while (i < count && x[i] != value) ++i;
  return i;
}

std::size_t CountOrderedBefore(const float* x, std::size_t count, float value, std::size_t before) {
  const DF d;
  const VF cutoff = hn::Set(d, value);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + kLanes <= before; i += kLanes) {
    found += hn::CountTrue(d, hn::Ge(hn::LoadU(d, x + i), cutoff));
  }
  for (; i < before; ++i) found += x[i] >= value ? 1 : 0;
  for (; i + kLanes <= count; i += kLanes) {
    found += hn::CountTrue(d, hn::Gt(hn::LoadU(d, x + i), cutoff));
  }
  for (; i < count; ++i) found += x[i] > value ? 1 : 0;
  return found;
}

// Writes the lanes in `keep` and returns their number. May also overwrite up to kLanes elements
// after them.
HWY_INLINE std::size_t AppendLanes(VF x, hn::Vec<DI> id, hn::Mask<DF> keep, std::int32_t* ids,
                                   float* values) {
  const DF d;
  const DI di;
#if HWY_TARGET <= HWY_AVX3
  // Compresses in a register first, because a compressing store takes hundreds of cycles on Zen 4.
  hn::StoreU(hn::Compress(x, keep), d, values);
  hn::StoreU(hn::Compress(id, hn::RebindMask(di, keep)), di, ids);
  return hn::CountTrue(d, keep);
#else
  // Highway's Compress is not used here, because g++ 12 copies its permutation table to the stack
  // on each call.
  HWY_ALIGN float x_lanes[kLanes];
  HWY_ALIGN std::int32_t id_lanes[kLanes];
  HWY_ALIGN std::int32_t kept_lanes[kLanes];
  hn::Store(x, d, x_lanes);
  hn::Store(id, di, id_lanes);
  hn::Store(hn::IfThenElseZero(hn::RebindMask(di, keep), hn::Set(di, 1)), di, kept_lanes);
  std::size_t kept = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    values[kept] = x_lanes[lane];
    ids[kept] = id_lanes[lane];
    kept += static_cast<std::size_t>(kept_lanes[lane]);
  }
  return kept;
#endif
}

// Collects as CollectBetween does. If outputs alias inputs, AppendLanes overwrites only values that
// have already been read.
std::size_t Collect(const internal::IdsAndValues& from, internal::ValueRange range,
                    std::int32_t* ids, float* values) {
  const DF d;
  const DI di;
  const VF low = hn::Set(d, range.low);
  const VF high = hn::Set(d, range.high);
  const auto lanes = hn::Iota(di, 0);
  std::size_t kept = 0;
  std::size_t i = 0;
  for (; i + kLanes <= from.count; i += kLanes) {
    const VF x = hn::LoadU(d, from.values + i);
    const auto keep = hn::And(hn::Ge(x, low), hn::Lt(x, high));
    if (hn::AllFalse(d, keep)) continue;
    const auto id = from.ids != nullptr
                        ? hn::LoadU(di, from.ids + i)
                        : hn::Add(lanes, hn::Set(di, from.first_id + static_cast<std::int32_t>(i)));
    kept += AppendLanes(x, id, keep, ids + kept, values + kept);
  }
  for (; i < from.count; ++i) {
    const float x = from.values[i];
    if (!(x >= range.low && x < range.high)) continue;
    ids[kept] = from.ids != nullptr ? from.ids[i] : from.first_id + static_cast<std::int32_t>(i);
    values[kept] = x;
    ++kept;
  }
  return kept;
}

// Converts a float with an integral value below 2^23 to an integer.
HWY_INLINE hn::Vec<DI> ToInteger(VF whole) {
  const DI di;
  return hn::And(hn::BitCast(di, hn::Add(whole, hn::Set(DF(), 0x1p23f))), hn::Set(di, 0x7fffff));
}

// Adds the masses of at most kSumPart values, in 32-bit lanes. A mass floor(w * 2^40) is split into
// a * 2^22 + b with a = floor(w * 2^18).
HWY_INLINE void AddMasses(const float* x, std::size_t count, float max,
                          const internal::MassCuts& cuts, internal::Masses& masses) {
  // Number of registers after which the sums of b are carried into those of a.
  constexpr std::size_t kCarry = 64;
  const DF d;
  const DI di;
  const VF m = hn::Set(d, max);
  hn::Vec<DI> a_sum[internal::kMassCuts];
  hn::Vec<DI> b_sum[internal::kMassCuts];
  for (std::size_t s = 0; s < internal::kMassCuts; ++s) a_sum[s] = b_sum[s] = hn::Zero(di);
  const auto add = [&](VF value) HWY_ATTR {
    const VF scaled = hn::Mul(Exp(hn::Sub(value, m)), hn::Set(d, 0x1p18f));
    const VF whole = hn::Floor(scaled);
    const auto a = ToInteger(whole);
    const auto b = ToInteger(hn::Floor(hn::Mul(hn::Sub(scaled, whole), hn::Set(d, 0x1p22f))));
    for (std::size_t s = 0; s < internal::kMassCuts; ++s) {
      const auto in = hn::RebindMask(di, hn::Ge(value, hn::Set(d, cuts[s])));
      a_sum[s] = hn::Add(a_sum[s], hn::IfThenElseZero(in, a));
      b_sum[s] = hn::Add(b_sum[s], hn::IfThenElseZero(in, b));
    }
  };
  const auto carry = [&]() HWY_ATTR {
    for (std::size_t s = 0; s < internal::kMassCuts; ++s) {
      a_sum[s] = hn::Add(a_sum[s], hn::ShiftRight<22>(b_sum[s]));
      b_sum[s] = hn::And(b_sum[s], hn::Set(di, 0x3fffff));
    }
  };
  std::size_t i = 0;
  while (i + kLanes <= count) {
    const std::size_t end = std::min(count, i + kCarry * kLanes);
    for (; i + kLanes <= end; i += kLanes) add(hn::LoadU(d, x + i));
    carry();
  }
  HWY_ALIGN float tail[kLanes];
  std::fill(tail, tail + kLanes, -kInfinity);
  std::copy(x + i, x + count, tail);
  add(hn::Load(d, tail));
  for (std::size_t s = 0; s < internal::kMassCuts; ++s) {
    HWY_ALIGN std::int32_t a[kLanes];
    HWY_ALIGN std::int32_t b[kLanes];
    hn::Store(a_sum[s], di, a);
    hn::Store(b_sum[s], di, b);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      masses[s] +=
          (static_cast<std::uint64_t>(a[lane]) << 22) + static_cast<std::uint64_t>(b[lane]);
    }
  }
}

internal::Masses SumMasses(const float* x, std::size_t count, float max,
                           const internal::MassCuts& cuts) {
  internal::Masses masses{};
  for (std::size_t i = 0; i < count; i += kSumPart) {
    AddMasses(x + i, std::min(kSumPart, count - i), max, cuts, masses);
  }
  return masses;
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

// Number of tokens per call of RandomWords.
constexpr std::size_t kGroup = 4 * kLanes;

// RandomWords computes the random words of kGroup tokens, starting at a multiple of kGroup.
// RandomWordsOf computes the words of kLanes arbitrary tokens.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void RandomWords(std::uint32_t first, const internal::RaceKey& key,
                            std::uint32_t* HWY_RESTRICT words) {
  const auto four = Philox4x32({first / 4, key.position, key.choice, 0}, key.seed);
  std::copy(four.begin(), four.end(), words);
}
HWY_INLINE VU RandomWordsOf(VU tokens, const internal::RaceKey& key) {
  const std::uint32_t token = hn::GetLane(tokens);
  const auto four = Philox4x32({token / 4, key.position, key.choice, 0}, key.seed);
  return hn::Set(DU(), four[token % 4]);
}
#else
// Computes both halves of the 64-bit products of the lanes and a constant.
HWY_INLINE void MultiplyWide(VU a, std::uint32_t factor, VU& high, VU& low) {
  const DU du;
  const hn::RepartitionToWide<DU> dw;
  const VU f = hn::Set(du, factor);
  const auto even = hn::MulEven(a, f);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))), f);
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
}

// Computes Philox (base/philox.h) with one counter per lane; c0 is the first word of the counter.
HWY_INLINE void PhiloxLanes(const internal::RaceKey& key, VU& c0, VU& c1, VU& c2, VU& c3) {
  const DU du;
  c1 = hn::Set(du, key.position);
  c2 = hn::Set(du, key.choice);
  c3 = hn::Zero(du);
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    VU high0, low0, high1, low1;
    MultiplyWide(c0, 0xD2511F53u, high0, low0);
    MultiplyWide(c2, 0xCD9E8D57u, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, k0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, k1));
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

HWY_INLINE void RandomWords(std::uint32_t first, const internal::RaceKey& key,
                            std::uint32_t* HWY_RESTRICT words) {
  const DU du;
  VU c0 = hn::Add(hn::Iota(du, 0), hn::Set(du, first / 4));
  VU c1, c2, c3;
  PhiloxLanes(key, c0, c1, c2, c3);
  hn::StoreInterleaved4(c0, c1, c2, c3, du, words);
}

HWY_INLINE VU RandomWordsOf(VU tokens, const internal::RaceKey& key) {
  const DU du;
  VU c0 = hn::ShiftRight<2>(tokens);
  VU c1, c2, c3;
  PhiloxLanes(key, c0, c1, c2, c3);
  const auto odd = hn::Eq(hn::And(tokens, hn::Set(du, 1)), hn::Set(du, 1));
  const auto upper = hn::Eq(hn::And(tokens, hn::Set(du, 2)), hn::Set(du, 2));
  return hn::IfThenElse(upper, hn::IfThenElse(odd, c3, c2), hn::IfThenElse(odd, c1, c0));
}
#endif

struct Best {
  float score = kInfinity;
  std::int32_t token = -1;
};

// Runs the race for one vector of tokens. Because -ln u >= 1 - u, most tokens lose without
// computing a logarithm. The bound 1 - u is lowered by 0.1 %, which covers all rounding errors of
// bound and score.
HWY_INLINE void RaceLanes(const float* HWY_RESTRICT x, const std::uint32_t* HWY_RESTRICT tokens,
                          VU words, float max, const internal::Prefix& prefix, Best& best) {
  const DF d;
  const DU du;
  const DI di;
  const VF value = hn::LoadU(d, x);
  const VF w = Exp(hn::Sub(value, hn::Set(d, max)));
  const VU rest = hn::ShiftRight<1>(hn::Not(words));
  const VF bound = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, rest)), hn::Set(d, 0.999f * 0x1p-31f));
  // A NaN (infinite score times weight 0) does not count as losing.
  const auto loses = hn::Gt(bound, hn::Mul(hn::Set(d, best.score), w));
  const auto open = hn::AndNot(loses, hn::Ge(value, hn::Set(d, prefix.x)));
  if (hn::AllFalse(d, open)) return;
  HWY_ALIGN float weights[kLanes];
  HWY_ALIGN float is_open[kLanes];
  HWY_ALIGN std::uint32_t random[kLanes];
  hn::Store(w, d, weights);
  hn::Store(hn::IfThenElseZero(open, hn::Set(d, 1.0f)), d, is_open);
  hn::Store(words, du, random);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto token = static_cast<std::int32_t>(tokens[lane]);
    if (is_open[lane] == 0.0f || (x[lane] == prefix.x && token > prefix.last_tie)) continue;
    const float score = ExponentialVariate(random[lane]) / weights[lane];
    if (score < best.score) best = {score, token};
  }
}

// Runs the race for the kGroup tokens from `first` on.
HWY_INLINE void RaceGroup(const float* HWY_RESTRICT x, std::uint32_t first, float max,
                          const internal::Prefix& prefix, const internal::RaceKey& key,
                          Best& best) {
  const DF d;
  const DU du;
  const VF cutoff = hn::Set(d, prefix.x);
  auto any = hn::Ge(hn::LoadU(d, x), cutoff);
  for (std::size_t i = kLanes; i < kGroup; i += kLanes) {
    any = hn::Or(any, hn::Ge(hn::LoadU(d, x + i), cutoff));
  }
  if (hn::AllFalse(d, any)) return;
  HWY_ALIGN std::uint32_t words[kGroup];
  HWY_ALIGN std::uint32_t tokens[kLanes];
  RandomWords(first, key, words);
  for (std::size_t i = 0; i < kGroup; i += kLanes) {
    const auto place = static_cast<std::uint32_t>(first + i);
    hn::Store(hn::Add(hn::Iota(du, 0), hn::Set(du, place)), du, tokens);
    RaceLanes(x + i, tokens, hn::Load(du, words + i), max, prefix, best);
  }
}

std::int32_t RaceSome(const internal::IdsAndValues& from, float max, const internal::Prefix& prefix,
                      const internal::RaceKey& key) {
  const DU du;
  Best best;
  for (std::size_t i = 0; i < from.count; i += kLanes) {
    const std::size_t size = std::min(kLanes, from.count - i);
    HWY_ALIGN float x[kLanes];
    HWY_ALIGN std::uint32_t tokens[kLanes] = {};
    std::fill(x, x + kLanes, -kInfinity);
    std::copy(from.values + i, from.values + i + size, x);
    std::copy(from.ids + i, from.ids + i + size, tokens);
    RaceLanes(x, tokens, RandomWordsOf(hn::Load(du, tokens), key), max, prefix, best);
  }
  return best.token;
}

std::int32_t RaceAll(const float* x, std::size_t count, float max, const internal::Prefix& prefix,
                     const internal::RaceKey& key) {
  Best best;
  std::size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    RaceGroup(x + i, static_cast<std::uint32_t>(i), max, prefix, key, best);
  }
  HWY_ALIGN float tail[kGroup];
  std::fill(tail, tail + kGroup, -kInfinity);
  std::copy(x + i, x + count, tail);
  RaceGroup(tail, static_cast<std::uint32_t>(i), max, prefix, key, best);
  return best.token;
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(Scan);
HWY_EXPORT(SumExp);
HWY_EXPORT(Scale);
HWY_EXPORT(RowMoments);
HWY_EXPORT(Find);
HWY_EXPORT(CountOrderedBefore);
HWY_EXPORT(Collect);
HWY_EXPORT(SumMasses);
HWY_EXPORT(ExpOf);
HWY_EXPORT(RaceAll);
HWY_EXPORT(RaceSome);

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
Moments MomentsOf(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(RowMoments)(x, count);
}
std::size_t FindFirst(const float* x, std::size_t count, float value) {
  return HWY_DYNAMIC_DISPATCH(Find)(x, count, value);
}
std::size_t CountBefore(const float* x, std::size_t count, float value, std::size_t before) {
  return HWY_DYNAMIC_DISPATCH(CountOrderedBefore)(x, count, value, before);
}
std::size_t CollectBetween(const IdsAndValues& from, ValueRange range, std::int32_t* ids,
                           float* values) {
  return HWY_DYNAMIC_DISPATCH(Collect)(from, range, ids, values);
}
Masses MassesAtLeast(const float* x, std::size_t count, float max, const MassCuts& cuts) {
  return HWY_DYNAMIC_DISPATCH(SumMasses)(x, count, max, cuts);
}
void ExpMinus(const float* x, std::size_t count, float max, float* w) {
  HWY_DYNAMIC_DISPATCH(ExpOf)(x, count, max, w);
}
std::int32_t Race(const float* x, std::size_t count, float max, const Prefix& prefix,
                  const RaceKey& key) {
  return HWY_DYNAMIC_DISPATCH(RaceAll)(x, count, max, prefix, key);
}
std::int32_t RaceAmong(const IdsAndValues& from, float max, const Prefix& prefix,
                       const RaceKey& key) {
  return HWY_DYNAMIC_DISPATCH(RaceSome)(from, max, prefix, key);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
