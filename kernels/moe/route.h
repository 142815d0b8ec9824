#pragma once

// From the rows of a mixture to the rows of each expert: the router's product, Router and
// SortByExpert.

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
  RouterParams choice;          // its logits are those, without gaps: both fields are filled in
  // As of SortByExpert, of what choice.experts and choice.weights become.
  std::uint32_t* offsets;           // [choice.num_experts + 1]
  std::uint32_t* rows;              // [choice.num_rows * choice.top_k]
  float* row_weights;               // likewise
  std::uint32_t* places = nullptr;  // [choice.num_rows, choice.top_k]; null: not wanted
  std::int64_t x_stride;            // elements, at least K
};

// Linear into logits, Router and SortByExpert, one after the other, bit for bit, with their errors.
// On a GPU a single launch where the product is one of tensor cores and of bf16 weights, not the
// library's, and rows are few (kMaxRouteRows): up to there one block chooses for all rows in less
// time than two launches take.
absl::Status Route(const Backend& backend, const RouteParams& params);

namespace internal {

inline constexpr std::uint32_t kMaxRouteRows = 16;

// Whether RouteCuda takes it.
bool RoutesAtOnce(const RouteParams& params);
absl::Status RouteCuda(const CudaContext& context, const RouteParams& params);

}  // namespace internal
}  // namespace quire::kernels
