// Traffic: 8 bytes in and 4 out per element. Bound by exp and the division, about 30 instructions
// per register. The tail of a row goes through a padded register, so that every element sees the
// same exp.

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

HWY_INLINE VF SiluTimes(VF gate, VF up) {
  const VF denominator = hn::Add(hn::Set(DF(), 1.0f), Exp(hn::Neg(gate)));
  return hn::Mul(hn::Div(gate, denominator), up);
}

void SiluProductRows(const SiluProductParams& params, std::int64_t row_begin,
                     std::int64_t row_end) {
  const DF d;
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float* const gate = params.gate.f32() + m * params.gate_stride;
    const float* const up = params.up.f32() + m * params.up_stride;
    float* const y = params.y.f32() + m * params.y_stride;
    const std::size_t columns = params.columns;
    std::size_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      hn::StoreU(SiluTimes(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
    }
    if (i == columns) continue;
    HWY_ALIGN float tail[2][kLanes] = {};
    for (std::size_t lane = 0; i + lane < columns; ++lane) {
      tail[0][lane] = gate[i + lane];
      tail[1][lane] = up[i + lane];
    }
    hn::Store(SiluTimes(hn::Load(d, tail[0]), hn::Load(d, tail[1])), d, tail[0]);
    for (std::size_t lane = 0; i + lane < columns; ++lane) y[i + lane] = tail[0][lane];
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(SiluProductRows);

namespace internal {

void SiluProductSimd(const SiluProductParams& params, std::int64_t row_begin,
                     std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(SiluProductRows)(params, row_begin, row_end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
