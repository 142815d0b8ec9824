// Reference implementation of the norm: rows and groups in index order.

#include <cmath>
#include <cstddef>

#include "kernels/norm/norm.h"

namespace quire::kernels::internal {
namespace {

// Normalizes `hidden` elements. A residual is allowed for a single group only.
void NormGroup(const RmsNormParams& params, const float* x, float* residual, float* y) {
  float sum = 0;
  for (std::uint32_t i = 0; i < params.hidden; ++i) {
    const float s = residual == nullptr ? x[i] : x[i] + residual[i];
    if (residual != nullptr) residual[i] = s;
    y[i] = s;
    sum += s * s;
  }
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(params.hidden) + params.epsilon);
  for (std::uint32_t i = 0; i < params.hidden; ++i) {
    const float weight = params.weight == nullptr ? 1.0f : params.weight[i];
    y[i] = y[i] * inverse * (weight + params.weight_offset);
  }
}

}  // namespace

void RmsNormCpu(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const std::int64_t from = params.row_indices == nullptr ? m : params.row_indices[m];
    const float* const x = params.x.f32() + from * params.x_stride;  // [hidden]
    float* const y = params.y.f32() + m * params.y_stride;           // [hidden]
    float* const residual =
        params.residual == nullptr ? nullptr : params.residual + from * params.residual_stride;
    for (std::uint32_t g = 0; g < params.groups; ++g) {
      const std::size_t at = std::size_t{g} * params.hidden;
      NormGroup(params, x + at, residual, y + at);
    }
  }
}

}  // namespace quire::kernels::internal
