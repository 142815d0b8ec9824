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
  const PackedLinear* first;       // [N, K], of group 0
  std::int64_t data_distance;      // bytes from the elements of a matrix to those of the next
  std::int64_t scale_distance;     // likewise of scales; 0 where there are none
  std::int64_t order_distance;     // likewise of orders
  std::uint32_t count;             // of groups
  const float* bias = nullptr;     // [N], of group 0; null: none
  std::int64_t bias_distance = 0;  // floats from a bias to the next
};

// The matrices matrix_of(0) .. matrix_of(count - 1) as groups without biases, or none where their
// forms or distances differ.
std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of);

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
};

// TakesGate of the matrices of groups, which the library never multiplies.
bool GroupsTakeGate(const LinearGroups& weights, DType x, DType y);

// With x[rows[m]] for x[m] where there are `rows`:
// y[m][n] = sum_k x[m][k] W[g][n][k] + bias[g][n] for offsets[g] <= first_row + m < offsets[g + 1],
// one launch for all groups; where weights have orders, one more for x, and as often as the
// workspace has room for rows of it. Types, alignment and sums are those of Linear in
// kBatchInvariant, bit for bit, whatever the groups are. Weights of a group without rows are not
// read. CUDA only. Returns INVALID_ARGUMENT on the CPU, for a stride below its row or a gate that
// is not taken, and where Linear does.
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
