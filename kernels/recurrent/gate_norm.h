#pragma once

// The gate that follows a recurrence or attention, fused with the norm before or after it.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

enum class GateOrder : std::uint8_t {
  kNormThenSilu,     // norm(x) * w * silu(gate)
  kNormThenSigmoid,  // norm(x) * w * sigmoid(gate)
  kSiluThenNorm,     // norm(x * silu(gate)) * w
  kSigmoid,          // x * sigmoid(gate), without norm
};

struct GateNormParams {
  ConstFloatPtr x;     // [num_rows, groups, columns], rows x_stride apart
  ConstFloatPtr gate;  // as x, rows gate_stride apart
  // [columns], or [groups, columns] if has_group_weights. Not read with kSigmoid.
  const float* weight = nullptr;
  FloatPtr y;  // [num_rows, groups, columns], rows y_stride apart; may be x
  std::int64_t x_stride;
  std::int64_t gate_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t groups;
  std::uint32_t columns;
  GateOrder order;
  bool has_group_weights = false;  // each group has its own weights
  float epsilon = 0;
};

// Computes y in f32, where norm(v) = v / sqrt(mean(v^2) + epsilon) over the columns of a group.
// Squares are summed in 16 virtual lanes, as in RmsNorm. A GPU reads and writes f32 or bf16, rounds
// once, and sums squares in 32 lanes, or in 256 for more than 1024 columns. Returns
// INVALID_ARGUMENT if columns or groups is 0 or a stride is less than groups * columns. On a GPU
// also returns it for dtypes other than f32 and bf16.
absl::Status GateNorm(const Backend& backend, const GateNormParams& params);

namespace internal {

// Both process rows [row_begin, row_end). GateNormCpu is the reference, GateNormSimd the fast path.
void GateNormCpu(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end);
void GateNormSimd(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end);

absl::Status GateNormCuda(const CudaContext& context, const GateNormParams& params);

}  // namespace internal
}  // namespace quire::kernels
