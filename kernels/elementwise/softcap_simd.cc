// The vector code of the soft cap. It reads 4 bytes and writes 4 per element. The exp and two
// divisions bound the speed, with about 40 instructions per register. The cost is negligible,
// because the preceding product reads a row of weights per element.

#include <algorithm>
#include <cstdint>

#include "kernels/elementwise/softcap.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/softcap_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

HWY_INLINE VF Capped(VF x, float scale, float cap) {
  const DF d;
  const VF scaled = hn::Mul(x, hn::Set(d, scale));
  if (cap == 0) return scaled;
  const VF limit = hn::Set(d, cap);
  const VF capped = hn::Mul(limit, Tanh(hn::Div(scaled, limit)));
  // Infinity is kept, so that the sampler detects it.
  return hn::IfThenElse(hn::IsInf(scaled), scaled, capped);
}

void SoftcapColumns(const SoftcapParams& params, std::int64_t begin, std::int64_t end) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(kLanes);
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    float* const x = params.x + m * params.x_stride;
    std::int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      hn::StoreU(Capped(hn::LoadU(d, x + i), params.scale, params.cap), d, x + i);
    }
    if (i == end) continue;
    HWY_ALIGN float tail[kLanes] = {};
    std::copy(x + i, x + end, tail);
    hn::Store(Capped(hn::Load(d, tail), params.scale, params.cap), d, tail);
    std::copy(tail, tail + (end - i), x + i);
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(SoftcapColumns);

namespace internal {

void SoftcapSimd(const SoftcapParams& params, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(SoftcapColumns)(params, begin, end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
