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

// Matrices of one form that lie at equal distances in device memory, and their biases.
//
// Threads:  immutable.
// Lifetime: a view; the matrices outlive it.
struct LinearGroups {
  const PackedLinear* first;        // [N, K], of group 0
  std::int64_t data_distance;       // bytes from the elements of a matrix to those of the next
  std::int64_t scale_distance;      // likewise of scales; 0 where there are none
  std::int64_t act_order_distance;  // likewise of orders
  std::uint32_t count;              // of groups
  const float* bias = nullptr;      // [N], of group 0; null: none
  std::int64_t bias_distance = 0;   // floats from a bias to the next
};

// The matrices matrix_of(0) .. matrix_of(count - 1) as groups without biases, or none where their
// forms or distances differ.
std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of);

// Sums over rows of y, those that a row of the caller chose, made by the launch that computes them.
struct ChosenSum {
  const std::uint32_t* places;  // [num_rows, top_k], distinct in a row: rows of y; device memory
  const float* weights;         // [num_rows, top_k]; device memory
  float* y;                     // [num_rows, N], rows y_stride apart; overlaps no input
  std::int64_t y_stride;        // elements, at least N
  std::uint32_t num_rows;
  std::uint32_t top_k;
  bool add = false;             // to what y holds
  const float* also = nullptr;  // [num_rows, N], rows y_stride apart, added first; null: none
};
// Choices, num_rows * top_k, of more than which the last block of a tile would be waited for.
inline constexpr std::uint32_t kMaxChosen = 256;

struct GroupedLinearParams {
  ConstFloatPtr x;                      // [num_rows, K], rows x_stride apart, or any with `rows`
  LinearGroups weights;                 // [count][N, K]
  const std::uint32_t* offsets;         // [count + 1], ascending from 0 to all rows; device memory
  FloatPtr y;                           // [num_rows, N], rows y_stride apart; not x
  std::int64_t x_stride;                // elements, at least K
  std::int64_t y_stride;                // elements, at least N; with a gate at least N / 2
  std::uint32_t num_rows;               // of the call
  std::uint32_t first_row = 0;          // of the call, among those that offsets count
  const std::uint32_t* rows = nullptr;  // [num_rows] row m is x[rows[m]]; null: x[m]; device memory
  std::optional<GateShape> gate = {};   // as of Linear, with what GroupsTakeGate says
  std::optional<ChosenSum> sum = {};    // of all rows of y, with what GroupsTakeSum says
};

// TakesGate of the matrices of groups, which the library never multiplies.
bool GroupsTakeGate(const LinearGroups& weights, DType x, DType y);

// Whether a product of all its rows at once takes a sum: on the tensor cores, f32 y without a gate,
// rows few for the groups and, in an order of their own, for the workspace, at most kMaxChosen
// choices, and every row of y, sum.y and sum.also 16-byte aligned.
bool GroupsTakeSum(const GroupedLinearParams& params, const ChosenSum& sum);

// With x[rows[m]] for x[m] where there are `rows`:
// y[m][n] = sum_k x[m][k] W[g][n][k] + bias[g][n] for offsets[g] <= first_row + m < offsets[g + 1],
// one launch for all groups; where weights have orders, one more for x, and as often as the
// workspace has room for rows of it. Types, alignment and sums are those of Linear in
// kBatchInvariant, bit for bit, whatever the groups are. Weights of a group without rows are not
// read. CUDA only. Returns INVALID_ARGUMENT on the CPU, for a stride below its row, a gate or a sum
// that is not taken, and where Linear does.
//
// A sum is what SumChosenRows (kernels/moe/expert_rows.h) makes of y, bit for bit: places ascending
// from zero, each product rounded before it is added; then `also`, then what sum.y holds.
absl::Status GroupedLinear(const Backend& backend, const GroupedLinearParams& params);

namespace internal {

// Picks one of the two below.
absl::Status GroupedLinearCuda(const CudaContext& context, const GroupedLinearParams& params);
// These take x in the weights' order.
absl::Status GroupedLinearScalarCuda(const CudaContext& context, const GroupedLinearParams& params);
absl::Status GroupedLinearTensorCoreCuda(const CudaContext& context,
                                         const GroupedLinearParams& params);
// y[m] = x[m] in the order of its group, K elements apart.
absl::Status GroupedOrderInputsCuda(const CudaContext& context, const GroupedLinearParams& params,
                                    FloatPtr y);

}  // namespace internal
}  // namespace quire::kernels
