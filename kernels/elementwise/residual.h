#pragma once

// ResidualAdd adds a branch to the residual stream if the branch or the sum has a factor. Without
// factors, the last matrix product of the branch also does the addition (kernels/linear/linear.h).
// RoundRows converts the stream to the activation type of a GPU.

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct ResidualAddParams {
  float* x;             // [num_rows, columns], rows x_stride apart
  const float* branch;  // [num_rows, columns], rows branch_stride apart
  std::int64_t x_stride;
  std::int64_t branch_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  float scale = 1;         // factor of the branch
  float output_scale = 1;  // factor of the sum
  // [1] second factor of the sum, in the backend's memory. It is multiplied by output_scale first.
  // Null: 1.
  const float* stored_scale = nullptr;
};

// Computes x = (x + scale * branch) * (output_scale * stored_scale), element by element, with every
// step rounded to f32. Returns INVALID_ARGUMENT if a stride is less than columns.
absl::Status ResidualAdd(const Backend& backend, const ResidualAddParams& params);

struct RoundRowsParams {
  const float* x;  // [num_rows, columns], rows x_stride apart
  BF16* y;         // [num_rows, columns], rows y_stride apart
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// Sets y = x, rounded to nearest even. A branch without a norm reads the stream as bf16. Returns
// INVALID_ARGUMENT if a stride is less than columns. REQUIRES: the backend is a GPU; CPU kernels
// read the f32 stream.
absl::Status RoundRows(const Backend& backend, const RoundRowsParams& params);

namespace internal {

absl::Status ResidualAddCuda(const CudaContext& context, const ResidualAddParams& params);
absl::Status RoundRowsCuda(const CudaContext& context, const RoundRowsParams& params);

}  // namespace internal

}  // namespace quire::kernels
