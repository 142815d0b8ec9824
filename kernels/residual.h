#pragma once

// The sum of a branch and the residual stream, where one of them has a factor. Without factors the
// sum is part of the branch's last product (kernels/linear.h).

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace quire::kernels {

struct ResidualAddParams {
  float* x;             // [num_rows, columns], rows x_stride apart
  const float* branch;  // [num_rows, columns], rows branch_stride apart
  std::int64_t x_stride;
  std::int64_t branch_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  float scale = 1;         // on the branch
  float output_scale = 1;  // on the sum
};

// x = (x + scale * branch) * output_scale, element by element, every step rounded to f32. Returns
// INVALID_ARGUMENT for a stride below columns, UNIMPLEMENTED on a GPU.
absl::Status ResidualAdd(const Backend& backend, const ResidualAddParams& params);

}  // namespace quire::kernels
