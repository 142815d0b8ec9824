#pragma once

// Products of groups of rows, each with a matrix of its own: the experts of a mixture. Where the
// groups begin is read on the device, so that the host need not wait for what decides it.

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Matrices of one form that lie at equal distances in device memory.
//
// Threads:  immutable.
// Lifetime: a view; the matrices outlive it.
struct LinearGroups {
  const PackedLinear* first;    // [N, K], of group 0
  std::int64_t distance_bytes;  // from the elements of one matrix to those of the next
  std::uint32_t count;
};

// The matrices matrix_of(0) .. matrix_of(count - 1) as groups, or none where GroupedLinear does not
// take them: their forms or distances differ, or they are not plain bf16 with K % 8 == 0.
std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of);

struct GroupedLinearParams {
  ConstFloatPtr x;               // [num_rows, K] bf16, rows x_stride apart
  LinearGroups weights;          // [count][N, K]
  const std::uint32_t* offsets;  // [count + 1], ascending from 0 to num_rows; device memory
  FloatPtr y;                    // [num_rows, N] bf16 or f32, rows y_stride apart; not x
  std::int64_t x_stride;         // elements, at least K, a multiple of 8
  std::int64_t y_stride;         // elements, at least N
  std::uint32_t num_rows;        // of all groups
};

// y[m][n] = sum_k x[m][k] W[g][n][k] for offsets[g] <= m < offsets[g + 1], one launch for all
// groups. Sums are those of Linear on tensor cores (linear_reduction.h), bit for bit, whatever the
// groups are. Weights of a group without rows are not read. CUDA only. Returns INVALID_ARGUMENT on
// the CPU, for a stride below its row, other types, or x that is not aligned to 16 bytes.
absl::Status GroupedLinear(const Backend& backend, const GroupedLinearParams& params);

namespace internal {

absl::Status GroupedLinearCuda(const CudaContext& context, const GroupedLinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
