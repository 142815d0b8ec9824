#pragma once

// A product for every head, each with a matrix of its own: what latent attention does with the
// parts of kv_b.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

inline constexpr std::uint32_t kMaxHeadsALaunch = 128;
// Rows of the kernel for few; more run in another, in tiles.
inline constexpr std::uint32_t kHeadLinearRows = 64;

struct HeadLinearParams {
  std::span<const PackedLinear* const> weights;  // one a head, all [N, K], at most
                                                 // kMaxHeadsALaunch
  ConstFloatPtr x;        // [num_rows, heads, K], rows x_stride apart, heads x_head_stride
  FloatPtr y;             // [num_rows, heads, N], rows y_stride apart, heads y_head_stride
  std::int64_t x_stride;  // elements, likewise the next three
  std::int64_t y_stride;
  std::int64_t x_head_stride;  // at least K
  std::int64_t y_head_stride;  // at least N
  std::uint32_t num_rows;
};

// y[m][h] = W_h x[m][h], with the bits and the errors of Linear for each head (in kFast those of
// Linear without a library where it is one launch). Returns
// INVALID_ARGUMENT also for matrices of several shapes, too many, or strides that do not hold the
// heads. On a GPU this is one launch where x, y and plain weights are bf16 and N and K multiples
// of 16, beyond kHeadLinearRows rows also the rows of every head of x aligned to 16 bytes;
// otherwise every head is a Linear, which refuses rows of bf16 that are not aligned.
absl::Status HeadLinear(const Backend& backend, const HeadLinearParams& params);

namespace internal {

// REQUIRES: what HeadLinear asks of one launch.
absl::Status HeadLinearCuda(const CudaContext& context, const HeadLinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
