#include "kernels/moe/route.h"

#include "base/status.h"
#include "kernels/moe/expert_rows.h"

namespace quire::kernels {

absl::Status Route(const Backend& backend, const RouteParams& params) {
  RouteParams filled = params;
  RouterParams& choice = filled.choice;
  choice.logits = params.logits;
  choice.logits_stride = choice.num_experts;
  QUIRE_RETURN_IF_ERROR(internal::CheckRouter(choice));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr && internal::CanFuseRoute(filled)) {
      return internal::RouteCuda(*backend.cuda(), filled);
    }
  }
  QUIRE_RETURN_IF_ERROR(Linear(backend, {.x = params.x,
                                         .weight = params.weight,
                                         .bias = params.bias,
                                         .y = params.logits,
                                         .x_stride = params.x_stride,
                                         .y_stride = choice.logits_stride,
                                         .num_rows = choice.num_rows}));
  QUIRE_RETURN_IF_ERROR(Router(backend, choice));
  return SortByExpert(backend, {.experts = choice.experts,
                                .weights = choice.weights,
                                .offsets = params.offsets,
                                .rows = params.rows,
                                .row_weights = params.row_weights,
                                .num_rows = choice.num_rows,
                                .top_k = choice.top_k,
                                .num_experts = choice.num_experts,
                                .places = params.places});
}

}  // namespace quire::kernels
