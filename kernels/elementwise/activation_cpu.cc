#include <cmath>

#include "kernels/elementwise/activation.h"

namespace quire::kernels::internal {
namespace {

float Activate(const GateShape& shape, float x) {
  switch (shape.act) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-shape.alpha * x));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case Activation::kGeluErf:
      return 0.5f * x * (1.0f + std::erf(x * 0.7071067812f));
    case Activation::kRelu2:
      return x > 0 ? x * x : x * 0.0f;
  }
  return 0;
}

float Product(const GateShape& shape, float gate, float up) {
  if (shape.limit > 0) {
    gate = gate > shape.limit ? shape.limit : gate;
    up = up > shape.limit ? shape.limit : up < -shape.limit ? -shape.limit : up;
  }
  return Activate(shape, gate) * (up + shape.up_offset);
}

}  // namespace

void GatedProductCpu(const GatedProductParams& params, std::int64_t row_begin,
                     std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float* const gate = params.gate.f32() + m * params.gate_stride;  // [columns]
    const float* const up =                                                // [columns]
        params.up.is_null() ? nullptr : params.up.f32() + m * params.up_stride;
    float* const y = params.y.f32() + m * params.y_stride;  // [columns]
    for (std::uint32_t i = 0; i < params.columns; ++i) {
      y[i] = Product(params.shape, gate[i], up == nullptr ? 1 : up[i]);
    }
  }
}

}  // namespace quire::kernels::internal
