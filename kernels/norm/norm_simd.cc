// Memory traffic per element: 8 bytes in and 8 out with a residual, 4 in and 4 out without. A row
// stays in L1 between the two passes. The residual addition is fused, because the norm reads the
// row anyway.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/norm/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/norm_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Computes y = x + residual, writes it back to residual, and returns the sum of squares.
HWY_INLINE float AddAndSquare(const float* x, float* residual, float* y, std::size_t hidden) {
  const DF d;
  VF sum[kRegisters];
  for (std::size_t c = 0; c < kRegisters; ++c) sum[c] = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kVirtualLanes <= hidden; i += kVirtualLanes) {
    for (std::size_t c = 0; c < kRegisters; ++c) {
      const std::size_t at = i + c * kLanes;
      VF s = hn::LoadU(d, x + at);
      if (residual != nullptr) {
        s = hn::Add(s, hn::LoadU(d, residual + at));
        hn::StoreU(s, d, residual + at);
      }
      hn::StoreU(s, d, y + at);
      sum[c] = hn::MulAdd(s, s, sum[c]);
    }
  }
  HWY_ALIGN float tail[kVirtualLanes] = {};
  for (std::size_t lane = 0; i + lane < hidden; ++lane) {
    float s = x[i + lane];
    if (residual != nullptr) {
      s += residual[i + lane];
      residual[i + lane] = s;
    }
    y[i + lane] = s;
    tail[lane] = s;
  }
  HWY_ALIGN float lanes[kVirtualLanes];
  for (std::size_t c = 0; c < kRegisters; ++c) {
    const VF s = hn::Load(d, tail + c * kLanes);
    hn::Store(hn::MulAdd(s, s, sum[c]), d, lanes + c * kLanes);
  }
  return SumLanes(lanes);
}

// Normalizes the `hidden` elements of one group. A residual is allowed only if a row has one group.
HWY_NOINLINE void NormGroup(const RmsNormParams& params, const float* x, float* residual,
                            float* y) {
  const DF d;
  const std::size_t hidden = params.hidden;
  // Local copies, because the compiler must assume that a store to y changes params.
  const float* const weights = params.weight;
  const float weight_offset = params.weight_offset;
  const VF offset = hn::Set(d, weight_offset);
  const float sum = AddAndSquare(x, residual, y, hidden);
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(params.hidden) + params.epsilon);
  const VF scale = hn::Set(d, inverse);
  std::size_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    const VF weight = weights == nullptr ? hn::Set(d, 1.0f) : hn::LoadU(d, weights + i);
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, y + i), scale), hn::Add(weight, offset)), d, y + i);
  }
  for (; i < hidden; ++i) {
    const float weight = weights == nullptr ? 1.0f : weights[i];
    y[i] = y[i] * inverse * (weight + weight_offset);
  }
}

void RmsNormRows(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const std::int64_t from = params.row_indices == nullptr ? m : params.row_indices[m];
    const float* const x = params.x.f32() + from * params.x_stride;
    float* const y = params.y.f32() + m * params.y_stride;
    float* const residual =
        params.residual == nullptr ? nullptr : params.residual + from * params.residual_stride;
    for (std::uint32_t g = 0; g < params.groups; ++g) {
      const std::size_t at = std::size_t{g} * params.hidden;
      NormGroup(params, x + at, residual, y + at);
    }
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(RmsNormRows);

namespace internal {

void RmsNormSimd(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(params, row_begin, row_end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
