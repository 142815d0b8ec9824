// The reference implementation of linear: three loops, with one accumulator per part of K. It
// divides K like the fast path but does not use fused multiply-add, so results differ in the last
// bits.

#include <algorithm>
#include <vector>

#include "kernels/linear/fp8_rows.h"
#include "kernels/linear/linear.h"

namespace quire::kernels::internal {

void LinearCpu(const LinearParams& params) {
  const PackedLinear& w = *params.weight;
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    const float* const row = params.x.f32() + m * params.x_stride;  // [K]
    float* const y = params.y.f32() + m * params.y_stride;          // [N]
    std::vector<float> x(row, row + w.k());
    if (w.quantizes_activations()) RoundRowFp8(row, w.k(), 1, x.data());
    for (std::uint32_t n = 0; n < w.n(); ++n) {
      float total = 0;
      for (std::uint32_t k0 = 0; k0 < w.k(); k0 += kLinearPart) {
        const std::uint32_t k1 = std::min(w.k(), k0 + kLinearPart);
        float part = 0;
        for (std::uint32_t k = k0; k < k1; ++k) part += x[k] * w.At(n, k);
        total += part;
      }
      if (params.bias != nullptr) total += params.bias[n];
      if (params.residual != nullptr) total += params.residual[m * params.residual_stride + n];
      y[n] = total;
    }
  }
}

}  // namespace quire::kernels::internal
