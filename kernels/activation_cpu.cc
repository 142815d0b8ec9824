// The plain gated product.

#include <cmath>

#include "kernels/activation.h"

namespace quire::kernels::internal {

void SiluProductCpu(const SiluProductParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float* const gate = params.gate.f32() + m * params.gate_stride;  // [columns]
    const float* const up = params.up.f32() + m * params.up_stride;        // [columns]
    float* const y = params.y.f32() + m * params.y_stride;                 // [columns]
    for (std::uint32_t i = 0; i < params.columns; ++i) {
      y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
  }
}

}  // namespace quire::kernels::internal
