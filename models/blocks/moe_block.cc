#include "models/blocks/moe_block.h"

#include <algorithm>
#include <span>

#include "base/status.h"
#include "kernels/elementwise/activation.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/router.h"
#include "models/blocks/branch.h"
#include "models/blocks/mlp_block.h"

namespace quire::models {
namespace {

kernels::RouterScore ScoreOf(RouterScore score) {
  switch (score) {
    case RouterScore::kSoftmaxAll:
      return kernels::RouterScore::kSoftmaxAll;
    case RouterScore::kSigmoid:
      return kernels::RouterScore::kSigmoid;
    case RouterScore::kSoftmaxChosen:
      return kernels::RouterScore::kSoftmaxChosen;
    case RouterScore::kSigmoidChosen:
      return kernels::RouterScore::kSigmoidChosen;
  }
  return kernels::RouterScore::kSoftmaxAll;
}

// Which rows each expert computes, and with what weights, into offsets, rows and row_weights.
absl::Status Route(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                   kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.router,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.router_logits,
                                     .x_stride = step.hidden,
                                     .y_stride = moe.num_experts,
                                     .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(kernels::Router(
      *step.backend,
      {.logits = b.router_logits,
       .choice_bias = weights.choice_bias,
       .experts = b.chosen,
       .weights = b.chosen_weights,
       .logits_stride = moe.num_experts,
       .num_rows = step.num_tokens,
       .num_experts = moe.num_experts,
       .top_k = moe.top_k,
       .score = ScoreOf(moe.score),
       .groups = moe.groups,
       .groups_kept = moe.groups_kept,
       .group_score = moe.group_score == GroupScore::kMax ? kernels::RouterGroupScore::kMax
                                                          : kernels::RouterGroupScore::kTop2Sum,
       .renormalise = moe.renormalise,
       .renorm_eps = moe.renorm_eps,
       .weight_scale = moe.weight_scale}));
  return kernels::SortByExpert(*step.backend, {.experts = b.chosen,
                                               .weights = b.chosen_weights,
                                               .offsets = b.offsets,
                                               .rows = b.rows,
                                               .row_weights = b.row_weights,
                                               .num_rows = step.num_tokens,
                                               .top_k = moe.top_k,
                                               .num_experts = moe.num_experts,
                                               .places = b.places});
}

// gate_up = act(gate(x)) * up(x), in the first half of rows of 2 * intermediate.
absl::Status Inner(const StepContext& step, const MlpSpec& mlp, const LinearWeights& gate_up,
                   kernels::ConstFloatPtr x, std::uint32_t num_rows) {
  return GatedProjection(step, mlp, gate_up,
                         {.x = x, .y = step.buffers->moe.gate_up, .num_rows = num_rows});
}

// The same for the rows of all experts, in their order, `num_rows` in all.
absl::Status InnerOfGroups(const StepContext& step, const MlpSpec& mlp,
                           std::span<const kernels::LinearGroups> gate_up, kernels::ConstFloatPtr x,
                           std::uint32_t num_rows) {
  const MoeBuffers& b = step.buffers->moe;
  kernels::GroupedLinearParams product{.x = x,
                                       .weights = {},
                                       .offsets = b.offsets,
                                       .y = b.gate_up,
                                       .x_stride = step.hidden,
                                       .y_stride = 2 * std::int64_t{mlp.intermediate},
                                       .num_rows = num_rows,
                                       .rows = b.rows};
  if (gate_up.size() == 1 && kernels::GroupsTakeGate(gate_up[0], x.dtype(), b.gate_up.dtype())) {
    product.gate = GateShapeOf(mlp);
    return ApplyGroups(*step.backend, gate_up, product);
  }
  QUIRE_RETURN_IF_ERROR(ApplyGroups(*step.backend, gate_up, product));
  return Activate(step, mlp, b.gate_up, num_rows);
}

// outputs = down(gate_up), or sum += down(gate_up).
absl::Status Down(const StepContext& step, const MlpSpec& mlp, const LinearWeights& down,
                  std::uint32_t num_rows, bool into_sum) {
  const MoeBuffers& b = step.buffers->moe;
  return ApplyLinear(*step.backend, down,
                     {.x = b.gate_up,
                      .weight = nullptr,
                      .residual = into_sum ? b.sum : nullptr,
                      .y = into_sum ? b.sum : b.outputs,
                      .x_stride = 2 * std::int64_t{mlp.intermediate},
                      .residual_stride = step.hidden,
                      .y_stride = step.hidden,
                      .num_rows = num_rows});
}

// sum[row] += weight * outputs, for rows as in AddWeightedRows.
absl::Status AddOutputs(const StepContext& step, const std::uint32_t* rows, const float* weights,
                        std::uint32_t num_rows) {
  const MoeBuffers& b = step.buffers->moe;
  return kernels::AddWeightedRows(*step.backend, {.x = b.outputs,
                                                  .rows = rows,
                                                  .weights = weights,
                                                  .y = b.sum,
                                                  .x_stride = step.hidden,
                                                  .y_stride = step.hidden,
                                                  .num_rows = num_rows,
                                                  .columns = step.hidden});
}

// The rows of an expert: b.rows[begin] and the `count` - 1 after it.
absl::Status RunExpert(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                       kernels::ConstFloatPtr input, std::uint32_t expert, std::uint32_t begin,
                       std::uint32_t count) {
  const MoeBuffers& b = step.buffers->moe;
  if (count == 0) return absl::OkStatus();
  // All rows, in their order, as of a single one.
  const bool all = count == step.num_tokens;
  if (!all) {
    QUIRE_RETURN_IF_ERROR(kernels::GatherRows(*step.backend, {.x = input.f32(),
                                                              .rows = b.rows + begin,
                                                              .y = b.inputs.f32(),
                                                              .x_stride = step.hidden,
                                                              .y_stride = step.hidden,
                                                              .num_rows = count,
                                                              .columns = step.hidden}));
  }
  const kernels::ConstFloatPtr x = all ? input : kernels::ConstFloatPtr(b.inputs);
  QUIRE_RETURN_IF_ERROR(Inner(step, moe.expert, weights.gate_up[expert], x, count));
  QUIRE_RETURN_IF_ERROR(Down(step, moe.expert, weights.down[expert], count, /*into_sum=*/false));
  return AddOutputs(step, b.rows + begin, b.row_weights + begin, count);
}

absl::Status RunShared(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                       kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  QUIRE_RETURN_IF_ERROR(Inner(step, *moe.shared, weights.shared_gate_up, input, step.num_tokens));
  QUIRE_RETURN_IF_ERROR(Down(step, *moe.shared, weights.shared_down, step.num_tokens,
                             /*into_sum=*/!moe.shared_gate));
  if (!moe.shared_gate) return absl::OkStatus();
  // The router's logits are no longer needed.
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.shared_gate,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.router_logits,
                                     .x_stride = step.hidden,
                                     .y_stride = 1,
                                     .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(kernels::SigmoidInPlace(*step.backend, b.router_logits, step.num_tokens));
  return AddOutputs(step, /*rows=*/nullptr, b.router_logits, step.num_tokens);
}

// One expert after the other, on the CPU.
absl::Status RunExperts(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                        kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  std::fill_n(b.sum, std::size_t{step.num_tokens} * step.hidden, 0.0f);
  for (std::uint32_t expert = 0; expert < moe.num_experts; ++expert) {
    QUIRE_RETURN_IF_ERROR(RunExpert(step, moe, weights, input, expert, b.offsets[expert],
                                    b.offsets[expert + 1] - b.offsets[expert]));
  }
  return absl::OkStatus();
}

// All experts at once, on a GPU: the sums of RunExperts in the same order, and three launches where
// experts have one matrix for gate and up that takes a gate. into_stream: the sums are added to the
// residual stream and not left in MoeBuffers::sum.
absl::Status RunGroupedExperts(const StepContext& step, const MoeSpec& moe,
                               const MoeWeights& weights, kernels::ConstFloatPtr input,
                               bool into_stream) {
  const MoeBuffers& b = step.buffers->moe;
  const std::uint32_t num_rows = step.num_tokens * moe.top_k;
  const std::int64_t inner = 2 * std::int64_t{moe.expert.intermediate};
  QUIRE_RETURN_IF_ERROR(InnerOfGroups(step, moe.expert, weights.gate_up_groups, input, num_rows));
  QUIRE_RETURN_IF_ERROR(ApplyGroups(*step.backend, weights.down_groups,
                                    {.x = b.gate_up,
                                     .weights = {},
                                     .offsets = b.offsets,
                                     .y = b.outputs,
                                     .x_stride = inner,
                                     .y_stride = step.hidden,
                                     .num_rows = num_rows}));
  return kernels::SumChosenRows(*step.backend, {.x = b.outputs,
                                                .places = b.places,
                                                .weights = b.chosen_weights,
                                                .y = into_stream ? step.buffers->x : b.sum,
                                                .x_stride = step.hidden,
                                                .y_stride = step.hidden,
                                                .num_rows = step.num_tokens,
                                                .top_k = moe.top_k,
                                                .columns = step.hidden,
                                                .add = into_stream});
}

}  // namespace

absl::Status MoeBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const MoeSpec& moe = layer.moe;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.mlp_in, weights.mlp_in));
  QUIRE_RETURN_IF_ERROR(Route(step, moe, weights.moe, input));
  const BranchOutput output = MlpOutput(layer, weights);
  if (step.backend->cuda() != nullptr) {
    const bool is_whole = output.is_sum() && !moe.shared;
    QUIRE_RETURN_IF_ERROR(RunGroupedExperts(step, moe, weights.moe, input, is_whole));
    if (is_whole) return absl::OkStatus();
  } else {
    QUIRE_RETURN_IF_ERROR(RunExperts(step, moe, weights.moe, input));
  }
  if (moe.shared) QUIRE_RETURN_IF_ERROR(RunShared(step, moe, weights.moe, input));
  return JoinBranch(step, output, step.buffers->moe.sum);
}

}  // namespace quire::models
