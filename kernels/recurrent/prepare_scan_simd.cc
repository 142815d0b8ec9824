// Each row of q and k is read twice and stays in L1. A decay costs an exp of a_log, a softplus and
// an exp, about 70 instructions per register.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/recurrent/prepare_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent/prepare_scan_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/recurrent/recurrent_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

HWY_INLINE void NormalizeHead(float* x, std::size_t size, float epsilon, float scale) {
  const VF inverse = hn::Set(DF(), scale / std::sqrt(SumOfSquares(x, size) + epsilon));
  for (std::size_t i = 0; i < size; i += kLanes) {
    StoreSome(hn::Mul(LoadSome(x + i, size - i), inverse), x + i, size - i);
  }
}

// Computes up to kLanes decays from the logits a and dt_bias. Returns t. Lane i of `a_log` is the
// a_log of the head of decay i.
HWY_INLINE VF Decays(const PrepareScanParams& params, const float* a, const float* dt_bias,
                     VF a_log, std::size_t count, float* decay) {
  const DF d;
  VF t = Softplus(hn::Add(LoadSome(a, count), LoadSome(dt_bias, count)));
  if (params.b == nullptr) {
    const VF clamped = hn::Min(hn::Max(t, hn::Set(d, params.dt_min)), hn::Set(d, params.dt_max));
    t = hn::IfThenElse(hn::Eq(t, t), clamped, t);  // NaN stays NaN
  }
  StoreSome(Exp(hn::Neg(hn::Mul(Exp(a_log), t))), decay, count);
  return t;
}

void DecayRow(const PrepareScanParams& params, const float* a, float* decay, float* rate) {
  const std::size_t per_head = params.channels / params.heads;
  if (per_head == 1) {
    for (std::size_t h = 0; h < params.heads; h += kLanes) {
      const std::size_t count = HWY_MIN(kLanes, params.heads - h);
      const VF t = Decays(params, a + h, params.dt_bias + h, LoadSome(params.a_log + h, count),
                          count, decay + h);
      if (params.b == nullptr) StoreSome(t, rate + h, count);
    }
    return;
  }
  for (std::size_t h = 0; h < params.heads; ++h) {
    const VF a_log = hn::Set(DF(), params.a_log[h]);
    for (std::size_t i = 0; i < per_head; i += kLanes) {
      const std::size_t at = h * per_head + i;
      Decays(params, a + at, params.dt_bias + at, a_log, HWY_MIN(kLanes, per_head - i), decay + at);
    }
  }
}

void PrepareRows(const PrepareScanParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const std::size_t heads = params.heads, size = params.key_size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    for (std::size_t head = 0; params.qk_l2_eps != 0 && head < params.key_heads; ++head) {
      const std::int64_t at = m * params.qk_stride + static_cast<std::int64_t>(head * size);
      NormalizeHead(params.q + at, size, params.qk_l2_eps, scale);
      NormalizeHead(params.k + at, size, params.qk_l2_eps, 1.0f);
    }
    float* const rate = params.rate + static_cast<std::size_t>(m) * heads;
    DecayRow(params, params.a + m * params.rates_stride,
             params.decay + static_cast<std::size_t>(m) * params.channels, rate);
    if (params.b == nullptr) continue;
    const float* const b = params.b + m * params.rates_stride;
    for (std::size_t h = 0; h < heads; h += kLanes) {
      StoreSome(Sigmoid(LoadSome(b + h, heads - h)), rate + h, heads - h);
    }
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(PrepareRows);

namespace internal {

void PrepareScanSimd(const PrepareScanParams& params, std::int64_t row_begin,
                     std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(PrepareRows)(params, row_begin, row_end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
