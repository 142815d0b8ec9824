#pragma once

// Routes the rows of an MoE block to experts: the matrix product of the router (Linear), then
// Router and SortByExpert.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/router.h"

namespace quire::kernels {

struct RouteParams {
  ConstFloatPtr x;              // [choice.num_rows, K], rows x_stride apart
  const PackedLinear* weight;   // [choice.num_experts, K]
  const float* bias = nullptr;  // [choice.num_experts]; null: none
  float* logits;                // [choice.num_rows, choice.num_experts]
  RouterParams choice;          // Route sets logits and logits_stride
  // Outputs of SortByExpert for choice.experts and choice.weights.
  std::uint32_t* offsets;           // [choice.num_experts + 1]
  std::uint32_t* rows;              // [choice.num_rows * choice.top_k]
  float* row_weights;               // [choice.num_rows * choice.top_k]
  std::uint32_t* places = nullptr;  // [choice.num_rows, choice.top_k]; null: not computed
  std::int64_t x_stride;            // elements, at least K
};

// Runs Linear into `logits`, then Router and SortByExpert. Results and errors are those of the
// separate ops, bit by bit. On a GPU this is one launch if the product uses tensor cores and bf16
// weights, is not computed by cuBLASLt, and has at most kMaxRouteRows rows. With more rows, the
// single block that routes all of them would take longer than two launches.
absl::Status Route(const Backend& backend, const RouteParams& params);

namespace internal {

inline constexpr std::uint32_t kMaxRouteRows = 16;

// True if RouteCuda supports these parameters.
bool CanFuseRoute(const RouteParams& params);
absl::Status RouteCuda(const CudaContext& context, const RouteParams& params);

}  // namespace internal
}  // namespace quire::kernels
