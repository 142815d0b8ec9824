// Reference implementation of GateNorm: rows and groups in index order.

#include <cmath>
#include <cstddef>

#include "kernels/recurrent/gate_norm.h"

namespace quire::kernels::internal {
namespace {

float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

void GateGroup(const GateNormParams& params, const float* x, const float* gate, const float* weight,
               float* y) {
  float sum = 0;
  for (std::size_t i = 0; i < params.columns; ++i) {
    y[i] = params.order == GateOrder::kSiluThenNorm ? x[i] * (gate[i] * Sigmoid(gate[i])) : x[i];
    sum += y[i] * y[i];
  }
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(params.columns) + params.epsilon);
  for (std::size_t i = 0; i < params.columns; ++i) {
    switch (params.order) {
      case GateOrder::kNormThenSilu:
        y[i] = y[i] * inverse * weight[i] * (gate[i] * Sigmoid(gate[i]));
        break;
      case GateOrder::kNormThenSigmoid:
        y[i] = y[i] * inverse * weight[i] * Sigmoid(gate[i]);
        break;
      case GateOrder::kSiluThenNorm:
        y[i] = y[i] * inverse * weight[i];
        break;
      case GateOrder::kSigmoid:
        y[i] = y[i] * Sigmoid(gate[i]);
        break;
    }
  }
}

}  // namespace

void GateNormCpu(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    for (std::uint32_t g = 0; g < params.groups; ++g) {
      const std::int64_t at = std::int64_t{g} * params.columns;
      const float* const weight =
          params.has_group_weights ? params.weight + at : params.weight;  // null with kSigmoid
      GateGroup(params, params.x.f32() + m * params.x_stride + at,
                params.gate.f32() + m * params.gate_stride + at, weight,
                params.y.f32() + m * params.y_stride + at);
    }
  }
}

}  // namespace quire::kernels::internal
