#pragma once

// The gated product of a feed-forward block.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/float_ptr.h"

namespace quire::kernels {

struct SiluProductParams {
  ConstFloatPtr gate;  // [num_rows, columns], rows gate_stride apart
  ConstFloatPtr up;    // [num_rows, columns], rows up_stride apart
  FloatPtr y;          // [num_rows, columns], rows y_stride apart; may be gate or up
  std::int64_t gate_stride;
  std::int64_t up_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// y = gate / (1 + exp(-gate)) * up, element by element in f32, with the one exp of all kernels. On
// a GPU all three are f32 or all are bf16. Returns INVALID_ARGUMENT for a stride below columns or
// other element types.
absl::Status SiluProduct(const Backend& backend, const SiluProductParams& params);

namespace internal {

absl::Status SiluProductCuda(const CudaContext& context, const SiluProductParams& params);
void SiluProductCpu(const SiluProductParams& params, std::int64_t row_begin, std::int64_t row_end);
void SiluProductSimd(const SiluProductParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
