#include "models/blocks/moe_block.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "base/stream.h"
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

// In the first half of rows of 2 * intermediate: act(first half) * second half.
absl::Status Activate(const StepContext& step, const MlpSpec& mlp, std::uint32_t num_rows) {
  const std::int64_t inner = mlp.intermediate;
  const kernels::FloatPtr y = step.buffers->moe.gate_up;
  return kernels::GatedProduct(*step.backend, {.gate = y,
                                               .up = y + inner,
                                               .y = y,
                                               .gate_stride = 2 * inner,
                                               .up_stride = 2 * inner,
                                               .y_stride = 2 * inner,
                                               .num_rows = num_rows,
                                               .columns = mlp.intermediate,
                                               .shape = GateShapeOf(mlp)});
}

// gate_up = act(gate(x)) * up(x), in the first half of rows of 2 * intermediate.
absl::Status Inner(const StepContext& step, const MlpSpec& mlp, const LinearWeights& gate_up,
                   kernels::ConstFloatPtr x, std::uint32_t num_rows) {
  const std::int64_t inner = mlp.intermediate;
  const kernels::FloatPtr y = step.buffers->moe.gate_up;
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, gate_up,
                                    {.x = x,
                                     .weight = nullptr,
                                     .y = y,
                                     .x_stride = step.hidden,
                                     .y_stride = 2 * inner,
                                     .num_rows = num_rows}));
  return Activate(step, mlp, num_rows);
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

// Where the rows of each expert begin, [experts + 1], in `memory` if need be. On a GPU the host
// waits for the router: how many rows a product has is part of its launch.
absl::StatusOr<const std::uint32_t*> ReadOffsets(const StepContext& step, const MoeSpec& moe,
                                                 std::vector<std::uint32_t>* memory) {
  const std::uint32_t* const from = step.buffers->moe.offsets;
  if (step.backend->cuda() == nullptr) return from;
  const Stream& stream = *step.backend->cuda()->stream;
  memory->resize(moe.num_experts + 1);
  QUIRE_RETURN_IF_ERROR(stream.Copy(
      memory->data(), from, static_cast<std::int64_t>(memory->size() * sizeof(std::uint32_t))));
  QUIRE_RETURN_IF_ERROR(stream.Synchronize());
  return memory->data();
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
    QUIRE_RETURN_IF_ERROR(kernels::GatherRows(*step.backend, {.x = input,
                                                              .rows = b.rows + begin,
                                                              .y = b.inputs,
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

absl::Status ClearSum(const StepContext& step) {
  float* const sum = step.buffers->moe.sum;
  const std::size_t count = std::size_t{step.num_tokens} * step.hidden;
  if (step.backend->cuda() != nullptr) {
    return step.backend->cuda()->stream->Zero(sum,
                                              static_cast<std::int64_t>(count * sizeof(float)));
  }
  std::fill_n(sum, count, 0.0f);
  return absl::OkStatus();
}

// One expert after the other: for every form of weights, and on the CPU.
absl::Status RunExperts(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                        kernels::ConstFloatPtr input) {
  QUIRE_RETURN_IF_ERROR(ClearSum(step));
  std::vector<std::uint32_t> memory;
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t* const offsets, ReadOffsets(step, moe, &memory));
  for (std::uint32_t expert = 0; expert < moe.num_experts; ++expert) {
    QUIRE_RETURN_IF_ERROR(RunExpert(step, moe, weights, input, expert, offsets[expert],
                                    offsets[expert + 1] - offsets[expert]));
  }
  return absl::OkStatus();
}

// sum = what the experts give, with the bits of RunExperts and five launches in all. Buffers hold
// the rows of all experts.
absl::Status RunGroupedExperts(const StepContext& step, const MoeSpec& moe,
                               const MoeWeights& weights, kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  const std::uint32_t num_rows = step.num_tokens * moe.top_k;
  const std::int64_t inner = 2 * std::int64_t{moe.expert.intermediate};
  QUIRE_RETURN_IF_ERROR(kernels::GatherRows(*step.backend, {.x = input,
                                                            .rows = b.rows,
                                                            .y = b.inputs,
                                                            .x_stride = step.hidden,
                                                            .y_stride = step.hidden,
                                                            .num_rows = num_rows,
                                                            .columns = step.hidden}));
  QUIRE_RETURN_IF_ERROR(kernels::GroupedLinear(*step.backend, {.x = b.inputs,
                                                               .weights = *weights.gate_up_groups,
                                                               .offsets = b.offsets,
                                                               .y = b.gate_up,
                                                               .x_stride = step.hidden,
                                                               .y_stride = inner,
                                                               .num_rows = num_rows}));
  QUIRE_RETURN_IF_ERROR(Activate(step, moe.expert, num_rows));
  QUIRE_RETURN_IF_ERROR(kernels::GroupedLinear(*step.backend, {.x = b.gate_up,
                                                               .weights = *weights.down_groups,
                                                               .offsets = b.offsets,
                                                               .y = b.outputs,
                                                               .x_stride = inner,
                                                               .y_stride = step.hidden,
                                                               .num_rows = num_rows}));
  return kernels::SumChosenRows(*step.backend, {.x = b.outputs,
                                                .places = b.places,
                                                .weights = b.chosen_weights,
                                                .y = b.sum,
                                                .x_stride = step.hidden,
                                                .y_stride = step.hidden,
                                                .num_rows = step.num_tokens,
                                                .top_k = moe.top_k,
                                                .columns = step.hidden});
}

}  // namespace

absl::Status MoeBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const MoeSpec& moe = layer.moe;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.mlp_in, weights.mlp_in));
  QUIRE_RETURN_IF_ERROR(Route(step, moe, weights.moe, input));
  // Places are kept where the rows of all experts have room: bf16 activations on a GPU.
  if (step.buffers->moe.places != nullptr && weights.moe.has_groups()) {
    QUIRE_RETURN_IF_ERROR(RunGroupedExperts(step, moe, weights.moe, input));
  } else {
    QUIRE_RETURN_IF_ERROR(RunExperts(step, moe, weights.moe, input));
  }
  if (moe.shared) QUIRE_RETURN_IF_ERROR(RunShared(step, moe, weights.moe, input));
  return JoinBranch(step, MlpOutput(layer, weights), step.buffers->moe.sum);
}

}  // namespace quire::models
