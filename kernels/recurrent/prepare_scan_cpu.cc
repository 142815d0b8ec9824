// Reference implementation of PrepareScan: computes the formulas element by element.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/recurrent/prepare_scan.h"

namespace quire::kernels::internal {
namespace {

void Normalize(float* x, std::size_t size, float epsilon, float scale) {
  float sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += x[i] * x[i];
  const float inverse = scale / std::sqrt(sum + epsilon);
  for (std::size_t i = 0; i < size; ++i) x[i] *= inverse;
}

}  // namespace

void PrepareScanCpu(const PrepareScanParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const std::size_t heads = params.heads, channels = params.channels, size = params.key_size;
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    for (std::size_t head = 0; params.qk_l2_eps != 0 && head < params.key_heads; ++head) {
      const std::int64_t at = m * params.qk_stride + static_cast<std::int64_t>(head * size);
      Normalize(params.q + at, size, params.qk_l2_eps, 1.0f / std::sqrt(static_cast<float>(size)));
      Normalize(params.k + at, size, params.qk_l2_eps, 1.0f);
    }
    const float* const a = params.a + m * params.rates_stride;
    const float* const b = params.b == nullptr ? nullptr : params.b + m * params.rates_stride;
    float* const rate = params.rate + static_cast<std::size_t>(m) * heads;
    float* const decay = params.decay + static_cast<std::size_t>(m) * channels;
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t head = c / (channels / heads);
      const float x = a[c] + params.dt_bias[c];
      float t = x > 20 ? x : std::log1p(std::exp(x));
      if (b == nullptr) rate[c] = t = std::clamp(t, params.dt_min, params.dt_max);
      decay[c] = std::exp(-std::exp(params.a_log[head]) * t);
    }
    for (std::size_t head = 0; b != nullptr && head < heads; ++head) {
      rate[head] = 1.0f / (1.0f + std::exp(-b[head]));
    }
  }
}

}  // namespace quire::kernels::internal
