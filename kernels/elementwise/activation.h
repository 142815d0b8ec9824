#pragma once

// The gated product of a feed-forward block.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

enum class Activation : std::uint8_t {
  kSilu,      // x / (1 + e^(-alpha x))
  kGeluTanh,  // 0.5 x (1 + tanh(0.7978845608 (x + 0.044715 x^3)))
  kGeluErf,   // 0.5 x (1 + erf(x / sqrt 2))
  kRelu2,     // max(x, 0)^2
};

// How a gate and an up value become one: act(gate) * up, or with any of the others set
//   g = min(gate, limit), u = clamp(up, -limit, limit), act(g) * (u + up_offset).
struct GateShape {
  Activation act = Activation::kSilu;
  float alpha = 1;  // of kSilu
  float limit = 0;  // 0: none
  float up_offset = 0;
  friend bool operator==(const GateShape&, const GateShape&) = default;
};

struct GatedProductParams {
  ConstFloatPtr gate;  // [num_rows, columns], rows gate_stride apart
  ConstFloatPtr up;    // [num_rows, columns], rows up_stride apart
  FloatPtr y;          // [num_rows, columns], rows y_stride apart; may be gate or up
  std::int64_t gate_stride;
  std::int64_t up_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  GateShape shape = {};
};

// y = act(gate) * up, element by element in f32, with the one exp of all kernels. A NaN stays one.
// On a GPU all three are f32 or all are bf16. Returns INVALID_ARGUMENT for a stride below columns,
// a negative limit or other element types.
absl::Status GatedProduct(const Backend& backend, const GatedProductParams& params);

namespace internal {

absl::Status GatedProductCuda(const CudaContext& context, const GatedProductParams& params);
void GatedProductCpu(const GatedProductParams& params, std::int64_t row_begin,
                     std::int64_t row_end);
void GatedProductSimd(const GatedProductParams& params, std::int64_t row_begin,
                      std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
