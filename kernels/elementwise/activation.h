#pragma once

// The gated product of a feed-forward block.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/backend/gate_shape.h"

namespace quire::kernels {

struct GatedProductParams {
  ConstFloatPtr gate;  // [num_rows, columns], rows gate_stride apart
  ConstFloatPtr up;    // [num_rows, columns], rows up_stride apart; null: 1
  FloatPtr y;          // [num_rows, columns], rows y_stride apart; may alias gate or up
  std::int64_t gate_stride;
  std::int64_t up_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  GateShape shape = {};
};

// Computes y = act(gate) * up, element by element in f32, with the exp that all kernels share.
// Without `up` it computes act(gate). NaN stays NaN. On a GPU gate and y have the same type, f32 or
// bf16, and up has that type or f32. Returns INVALID_ARGUMENT if a stride is less than columns,
// limit is negative, limit or up_offset is set without `up`, or element types are unsupported.
absl::Status GatedProduct(const Backend& backend, const GatedProductParams& params);

namespace internal {

absl::Status GatedProductCuda(const CudaContext& context, const GatedProductParams& params);
void GatedProductCpu(const GatedProductParams& params, std::int64_t row_begin,
                     std::int64_t row_end);
void GatedProductSimd(const GatedProductParams& params, std::int64_t row_begin,
                      std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
