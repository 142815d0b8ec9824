#pragma once

// Products of groups of rows, for the experts of an MoE layer. Each group has a separate matrix.
// Kernels read the offsets of the groups from device memory, so the host does not wait for the
// router.

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Matrices with the same format at equal distances in device memory, and their biases.
//
// Threads:  immutable.
// Lifetime: a view; the matrices outlive it.
struct LinearGroups {
  const PackedLinear* first;        // [N, K], the matrix of group 0
  std::int64_t data_distance;       // bytes between the elements of consecutive matrices
  std::int64_t scale_distance;      // bytes between their scales; 0 without scales
  std::int64_t act_order_distance;  // bytes between their act-order permutations
  std::uint32_t count;              // number of groups
  const float* bias = nullptr;      // [N], the bias of group 0; null: none
  std::int64_t bias_distance = 0;   // floats between consecutive biases
};

// Returns matrix_of(0) .. matrix_of(count - 1) as groups without biases. Returns nullopt if `count`
// is 0, or if the formats, shapes or distances of the matrices differ.
std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of);

// A weighted sum per token, over the token's rows of GroupedLinearParams::y, one per chosen expert.
// The launch that computes these rows also computes the sums.
struct ChosenSum {
  // [num_rows, top_k] row indices into GroupedLinearParams::y; the top_k indices of a token differ;
  // device memory
  const std::uint32_t* places;
  const float* weights;   // [num_rows, top_k]; device memory
  float* y;               // [num_rows, N], rows y_stride apart; overlaps no input
  std::int64_t y_stride;  // elements, at least N
  std::uint32_t num_rows;
  std::uint32_t top_k;
  bool add = false;  // the sums are added to the values of y
  // [num_rows, N], rows y_stride apart; added to the sum of the rows, before the old value of y;
  // null: none
  const float* addend = nullptr;
};
// Maximum of num_rows * top_k. With more choices a separate launch is faster, because in the fused
// launch one block computes all sums of a feature tile.
inline constexpr std::uint32_t kMaxChosen = 256;

struct GroupedLinearParams {
  ConstFloatPtr x;               // [num_rows, K]; if `rows` is set, any number of rows
  LinearGroups weights;          // [count][N, K]
  const std::uint32_t* offsets;  // [count + 1], ascending from 0 to the row count; device memory
  FloatPtr y;                    // [num_rows, N], with a gate [num_rows, N / 2]; must not be x
  std::int64_t x_stride;         // elements, at least K
  std::int64_t y_stride;         // elements between rows, at least the length of a row of y
  std::uint32_t num_rows;        // rows of this call
  // First row of this call, in the row numbering of `offsets`.
  std::uint32_t first_row = 0;
  const std::uint32_t* rows = nullptr;  // [num_rows] row m is x[rows[m]]; null: x[m]; device memory
  std::optional<GateShape> gate = {};   // as in Linear; requires CanFuseGroupedGate
  std::optional<ChosenSum> sum = {};    // sums over all rows of y; requires CanFuseGroupedSum
};

// Like CanFuseGate, for GroupedLinear, which never uses cuBLASLt.
bool CanFuseGroupedGate(const LinearGroups& weights, DType x, DType y);

// True if the launch that computes the product of all rows can also compute the sum. This requires
// tensor cores, f32 y, no gate, first_row 0, few rows per group and at most kMaxChosen choices. N
// must be a multiple of 4 and have at most kLinearMaxPartials tiles. Every row of y, sum.y and
// sum.addend must be 16-byte aligned. If rows of x are permuted or quantized first, all rows must
// fit in the workspace.
bool CanFuseGroupedSum(const GroupedLinearParams& params, const ChosenSum& sum);

// Computes y[m][n] = sum_k x[m][k] W[g][n][k] + bias[g][n] for offsets[g] <= first_row + m <
// offsets[g + 1]. If `rows` is set, x[rows[m]] replaces x[m]. One launch computes all groups.
// Weights with an act-order permutation need another launch for x, and both launches are repeated
// if the workspace is too small for all rows. Requires the dtypes and alignment that Linear
// requires. y has the same bits as from Linear with Determinism::kBatchInvariant, however the rows
// are divided into groups. Weights of a group without rows are not read. CUDA only. Returns
// INVALID_ARGUMENT on the CPU, for a stride shorter than a row, for an unsupported gate or sum, and
// wherever Linear does.
//
// The bits of a sum are those of SumChosenRows (kernels/moe/expert_rows.h). A sum starts at zero.
// The products weight * row are rounded and added in ascending order of `places`. Then `addend` is
// added. If `add` is true, the old value of sum.y is added last.
absl::Status GroupedLinear(const Backend& backend, const GroupedLinearParams& params);

namespace internal {

// Calls GroupedLinearScalarCuda or GroupedLinearTensorCoreCuda.
absl::Status GroupedLinearCuda(const CudaContext& context, const GroupedLinearParams& params);
// REQUIRES: x was permuted if the weights have an act-order permutation.
absl::Status GroupedLinearScalarCuda(const CudaContext& context, const GroupedLinearParams& params);
absl::Status GroupedLinearTensorCoreCuda(const CudaContext& context,
                                         const GroupedLinearParams& params);
// Applies the act-order permutation of each group to the group's rows. Rows of y are K apart.
absl::Status GroupedPermuteInputsCuda(const CudaContext& context, const GroupedLinearParams& params,
                                      FloatPtr y);

}  // namespace internal
}  // namespace quire::kernels
