#pragma once

// Root-mean-square normalization, optionally with the residual addition before it.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

struct RmsNormParams {
  ConstFloatPtr x;                // [num_rows, hidden], rows x_stride apart
  const float* weight = nullptr;  // [hidden]; null: all ones
  float* residual = nullptr;  // [num_rows, hidden], read, added and written back; null: no residual
  FloatPtr y;                 // [num_rows, hidden], rows y_stride apart; may be x
  std::int64_t x_stride;
  std::int64_t residual_stride = 0;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t hidden;
  float epsilon;
  float weight_offset = 0;  // 1 for Gemma
  // [num_rows]: row m of y is computed from row row_indices[m] of x and residual. Null: from row m.
  // If set, y must not be x, and indices must be distinct if there is a residual.
  const std::uint32_t* row_indices = nullptr;
  // Number of adjacent groups (heads) of `hidden` elements in a row. Each group is normalized
  // separately with the same weight. Must be 1 with a residual.
  std::uint32_t groups = 1;
};

// Computes s = x + residual and y = s * (1 / sqrt(mean(s^2) + epsilon)) * (weight + weight_offset),
// row by row in f32. The CPU sums squares in 16 virtual lanes (element i in lane i mod 16,
// ascending), which are added in a fixed order. norm_cuda.cu documents the order on a GPU. On a
// GPU, (x, y) may be (f32, f32), (f32, bf16) or, without residual, (bf16, bf16). Groups on a GPU
// require equal types and no row_indices. Returns INVALID_ARGUMENT if hidden is 0, a stride is less
// than the row length, groups are combined with a residual, or types are unsupported.
absl::Status RmsNorm(const Backend& backend, const RmsNormParams& params);

namespace internal {

absl::Status RmsNormCuda(const CudaContext& context, const RmsNormParams& params);
// Both process rows [row_begin, row_end). RmsNormCpu is the reference, RmsNormSimd the fast path.
void RmsNormCpu(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end);
void RmsNormSimd(const RmsNormParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
