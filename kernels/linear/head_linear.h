#pragma once

// A product per head, each with a separate matrix. MLA uses it for the key and the value matrices
// of kv_b.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Largest number of heads.
inline constexpr std::uint32_t kMaxHeadsPerLaunch = 128;
// Maximum number of rows of the kernel for few rows. More rows run in a tiled kernel.
inline constexpr std::uint32_t kHeadLinearRows = 64;

struct HeadLinearParams {
  // One matrix per head, all [N, K], at most kMaxHeadsPerLaunch.
  std::span<const PackedLinear* const> weights;
  ConstFloatPtr x;        // [num_rows, heads, K], rows x_stride apart, heads x_head_stride
  FloatPtr y;             // [num_rows, heads, N], rows y_stride apart, heads y_head_stride
  std::int64_t x_stride;  // all strides are in elements
  std::int64_t y_stride;
  std::int64_t x_head_stride;  // at least K
  std::int64_t y_head_stride;  // at least N
  std::uint32_t num_rows;
};

// Computes y[m][h] = W_h x[m][h], with the bits and the errors of Linear for each head. In kFast, a
// single launch has the bits of Linear without cuBLASLt. Also returns INVALID_ARGUMENT for matrices
// of different shapes, too many matrices, or strides that are too small for the heads.
//
// On a GPU this is one launch if x, y and unquantized weights are bf16 and N and K are multiples of
// 16. Above kHeadLinearRows rows, the rows of every head of x must also be 16-byte aligned.
// Otherwise every head is a Linear, which rejects unaligned bf16 rows.
absl::Status HeadLinear(const Backend& backend, const HeadLinearParams& params);

namespace internal {

// REQUIRES: the conditions that HeadLinear states for one launch.
absl::Status HeadLinearCuda(const CudaContext& context, const HeadLinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
