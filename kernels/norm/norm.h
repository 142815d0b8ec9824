#pragma once

// Root-mean-square normalisation, with the residual sum before it.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

struct RmsNormParams {
  ConstFloatPtr x;                // [num_rows, hidden], rows x_stride apart
  const float* weight = nullptr;  // [hidden]; null: ones
  float* residual = nullptr;  // [num_rows, hidden], read, added and written back; null: no residual
  FloatPtr y;                 // [num_rows, hidden], rows y_stride apart; may be x
  std::int64_t x_stride;
  std::int64_t residual_stride = 0;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t hidden;
  float epsilon;
  float weight_offset = 0;  // 1 for Gemma
  // [num_rows]: row m reads x and residual in row row_indices[m] and writes row m of y, which is
  // not x then; distinct where there is a residual. Null: row m.
  const std::uint32_t* row_indices = nullptr;
  // A row is this many groups of `hidden` elements, side by side, each with a mean square
  // of its own and all with one weight: the heads of a token. 1 with a residual.
  std::uint32_t groups = 1;
};

// s = x + residual; y = s * (1 / sqrt(mean(s^2) + epsilon)) * (weight + weight_offset), row by row
// in f32. The sum of squares has 16 virtual lanes (element i in lane i mod 16, ascending) and a
// fixed reduction order over them; on a GPU the trees are those of norm_cuda.cu, and x, y are f32,
// f32 or f32, bf16 or, without residual, bf16, bf16; groups have equal types and no row_indices
// there. Returns INVALID_ARGUMENT for hidden 0, a stride below the row, groups with a residual, or
// other types.
absl::Status RmsNorm(const Backend& backend, const RmsNormParams& params);

namespace internal {

absl::Status RmsNormCuda(const CudaContext& context, const RmsNormParams& params);
// Rows [row_begin, row_end): the plain reference and the fast path.
void RmsNormCpu(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end);
void RmsNormSimd(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
