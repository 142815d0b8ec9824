#include "models/blocks/moe_block.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/status.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/residual.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/route.h"
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

// Computes the rows of each expert and their weights: offsets, rows and row_weights.
absl::Status Route(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                   kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  // The router is never converted, so it is a single matrix.
  QUIRE_CHECK(weights.router.matrices.size() == 1);
  return kernels::Route(*step.backend,
                        {.x = input,
                         .weight = &weights.router.matrices.front(),
                         .bias = weights.router.bias,
                         .logits = b.router_logits,
                         .choice = {.logits = nullptr,
                                    .choice_bias = weights.choice_bias,
                                    .experts = b.chosen,
                                    .weights = b.chosen_weights,
                                    .logits_stride = 0,
                                    .num_rows = step.num_tokens,
                                    .num_experts = moe.num_experts,
                                    .top_k = moe.top_k,
                                    .score = ScoreOf(moe.score),
                                    .groups = moe.groups,
                                    .groups_kept = moe.groups_kept,
                                    .group_score = moe.group_score == GroupScore::kMax
                                                       ? kernels::RouterGroupScore::kMax
                                                       : kernels::RouterGroupScore::kTop2Sum,
                                    .renormalize = moe.renormalize,
                                    .renorm_eps = moe.renorm_eps,
                                    .weight_scale = moe.weight_scale,
                                    .expert_scale = weights.expert_scale},
                         .offsets = b.offsets,
                         .rows = b.rows,
                         .row_weights = b.row_weights,
                         .places = b.places,
                         .x_stride = step.hidden});
}

// Columns of the input and the output of a chosen expert.
std::uint32_t ExpertColumns(const StepContext& step, const MoeSpec& moe) {
  return moe.latent != 0 ? moe.latent : step.hidden;
}

// Writes act(gate(x)) * up(x) to the first half of the rows of gate_up, or act(up(x)) to the rows.
absl::Status ComputeInner(const StepContext& step, const MlpSpec& mlp, const LinearWeights& gate_up,
                          kernels::ConstFloatPtr x, std::uint32_t num_rows) {
  return GatedProjection(step, mlp, gate_up,
                         {.x = x, .y = step.buffers->moe.gate_up, .num_rows = num_rows});
}

// Like ComputeInner, for the rows of all experts, sorted by expert. The product gathers these rows
// from x, unless experts read weighted inputs.
absl::Status ComputeInnerOfGroups(const StepContext& step, const MoeSpec& moe,
                                  std::span<const kernels::LinearGroups> gate_up,
                                  kernels::ConstFloatPtr x) {
  const MoeBuffers& b = step.buffers->moe;
  const MlpSpec& mlp = moe.expert;
  const std::uint32_t num_rows = step.num_tokens * moe.top_k;
  kernels::GroupedLinearParams product{.x = x,
                                       .weights = {},
                                       .offsets = b.offsets,
                                       .y = b.gate_up,
                                       .x_stride = ExpertColumns(step, moe),
                                       .y_stride = mlp.inner_columns(),
                                       .num_rows = num_rows,
                                       .rows = b.rows};
  if (moe.weight_on_input) {
    const std::uint32_t columns = ExpertColumns(step, moe);
    QUIRE_RETURN_IF_ERROR(kernels::GatherRows(*step.backend, {.x = x,
                                                              .rows = b.rows,
                                                              .y = b.inputs,
                                                              .x_stride = columns,
                                                              .y_stride = columns,
                                                              .num_rows = num_rows,
                                                              .columns = columns,
                                                              .weights = b.row_weights}));
    product.x = b.inputs;
    product.rows = nullptr;
  }
  if (mlp.gated && gate_up.size() == 1 &&
      kernels::CanFuseGroupedGate(gate_up[0], x.dtype(), b.gate_up.dtype())) {
    product.gate = GateShapeOf(mlp);
    return ApplyGroups(*step.backend, gate_up, product);
  }
  QUIRE_RETURN_IF_ERROR(ApplyGroups(*step.backend, gate_up, product));
  return Activate(step, mlp, b.gate_up, num_rows);
}

// Rows of f32 that a product writes.
struct OutputRows {
  float* y;
  const float* residual;  // added to the product; null: none
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// Computes y = down(gate_up), plus the residual if it is not null.
absl::Status ComputeDown(const StepContext& step, const MlpSpec& mlp, const LinearWeights& down,
                         const OutputRows& rows) {
  return ApplyLinear(*step.backend, down,
                     {.x = step.buffers->moe.gate_up,
                      .weight = nullptr,
                      .residual = rows.residual,
                      .y = rows.y,
                      .x_stride = mlp.inner_columns(),
                      .residual_stride = rows.columns,
                      .y_stride = rows.columns,
                      .num_rows = rows.num_rows});
}

// Computes sum[row] += weight * outputs. See AddWeightedRows for `rows` and `weights`.
absl::Status AddOutputs(const StepContext& step, const std::uint32_t* rows, const float* weights,
                        const OutputRows& sum) {
  return kernels::AddWeightedRows(*step.backend, {.x = step.buffers->moe.outputs,
                                                  .rows = rows,
                                                  .weights = weights,
                                                  .y = sum.y,
                                                  .x_stride = sum.columns,
                                                  .y_stride = sum.columns,
                                                  .num_rows = sum.num_rows,
                                                  .columns = sum.columns});
}

// Computes one expert for the rows b.rows[begin], ..., b.rows[begin + count - 1], and adds its
// weighted output to `sum`.
absl::Status RunExpert(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                       kernels::ConstFloatPtr input, float* sum, std::uint32_t expert) {
  const MoeBuffers& b = step.buffers->moe;
  const std::uint32_t begin = b.offsets[expert];
  const std::uint32_t count = b.offsets[expert + 1] - begin;
  if (count == 0) return absl::OkStatus();
  const std::uint32_t columns = ExpertColumns(step, moe);
  const float* const row_weights = b.row_weights + begin;
  // An expert that all rows chose reads the input without a copy, unless the input is weighted.
  const bool all = count == step.num_tokens && !moe.weight_on_input;
  if (!all) {
    QUIRE_RETURN_IF_ERROR(kernels::GatherRows(
        *step.backend, {.x = input,
                        .rows = b.rows + begin,
                        .y = b.inputs,
                        .x_stride = columns,
                        .y_stride = columns,
                        .num_rows = count,
                        .columns = columns,
                        .weights = moe.weight_on_input ? row_weights : nullptr}));
  }
  const kernels::ConstFloatPtr x = all ? input : kernels::ConstFloatPtr(b.inputs);
  QUIRE_RETURN_IF_ERROR(ComputeInner(step, moe.expert, weights.gate_up[expert], x, count));
  QUIRE_RETURN_IF_ERROR(
      ComputeDown(step, moe.expert, weights.down[expert], {b.outputs, nullptr, count, columns}));
  return AddOutputs(step, b.rows + begin, moe.weight_on_input ? nullptr : row_weights,
                    {sum, nullptr, count, columns});
}

// Adds the output of the shared expert to sum if `add` is true, else writes it to sum. REQUIRES:
// `add` is true if the shared expert has a gate.
absl::Status RunShared(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                       kernels::ConstFloatPtr input, bool add) {
  const MoeBuffers& b = step.buffers->moe;
  QUIRE_RETURN_IF_ERROR(
      ComputeInner(step, *moe.shared, weights.shared_gate_up, input, step.num_tokens));
  QUIRE_RETURN_IF_ERROR(
      ComputeDown(step, *moe.shared, weights.shared_down,
                  {moe.shared_gate ? b.outputs : b.sum, add && !moe.shared_gate ? b.sum : nullptr,
                   step.num_tokens, step.hidden}));
  if (!moe.shared_gate) return absl::OkStatus();
  // Reuses the buffer of the router's logits, which are not needed any more.
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.shared_gate,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.router_logits,
                                     .x_stride = step.hidden,
                                     .y_stride = 1,
                                     .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(kernels::SigmoidInPlace(*step.backend, b.router_logits, step.num_tokens));
  return AddOutputs(step, /*rows=*/nullptr, b.router_logits,
                    {b.sum, nullptr, step.num_tokens, step.hidden});
}

// Computes latent_in, the input of experts behind a latent projection.
absl::Status ComputeLatentInput(const StepContext& step, const MoeSpec& moe,
                                const MoeWeights& weights, kernels::ConstFloatPtr input) {
  return ApplyLinear(*step.backend, weights.latent_in,
                     {.x = input,
                      .weight = nullptr,
                      .y = step.buffers->moe.latent_in,
                      .x_stride = step.hidden,
                      .y_stride = moe.latent,
                      .num_rows = step.num_tokens});
}

// Computes the hidden-size `sum` from the latent sums, plus the residual if it is not null.
absl::Status ComputeLatentOutput(const StepContext& step, const MoeSpec& moe,
                                 const MoeWeights& weights, kernels::ConstFloatPtr sums,
                                 const float* residual) {
  return ApplyLinear(*step.backend, weights.latent_out,
                     {.x = sums,
                      .weight = nullptr,
                      .residual = residual,
                      .y = step.buffers->moe.sum,
                      .x_stride = moe.latent,
                      .residual_stride = step.hidden,
                      .y_stride = step.hidden,
                      .num_rows = step.num_tokens});
}

// Computes one expert after the other, on the CPU. Writes their weighted sum to MoeBuffers::sum.
absl::Status RunExperts(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                        kernels::ConstFloatPtr input) {
  const MoeBuffers& b = step.buffers->moe;
  const bool is_latent = moe.latent != 0;
  if (is_latent) {
    QUIRE_RETURN_IF_ERROR(ComputeLatentInput(step, moe, weights, input));
    input = b.latent_in;
  }
  float* const sum = is_latent ? b.latent_sum : b.sum;
  std::fill_n(sum, std::size_t{step.num_tokens} * ExpertColumns(step, moe), 0.0f);
  for (std::uint32_t expert = 0; expert < moe.num_experts; ++expert) {
    QUIRE_RETURN_IF_ERROR(RunExpert(step, moe, weights, input, sum, expert));
  }
  return is_latent ? ComputeLatentOutput(step, moe, weights, sum, nullptr) : absl::OkStatus();
}

// The destination of the sums that ComputeDownOfGroups computes.
struct GroupSum {
  float* y;
  bool add = false;               // adds to y instead of overwriting it
  const float* addend = nullptr;  // added to the sums; null: none
};

// Computes outputs = down(gate_up) of all experts, and for each token the weighted sum of the
// outputs of its experts. If the product can add these sums, this is one launch.
absl::Status ComputeDownOfGroups(const StepContext& step, const MoeSpec& moe,
                                 const MoeWeights& weights, const GroupSum& to) {
  const MoeBuffers& b = step.buffers->moe;
  const std::uint32_t columns = ExpertColumns(step, moe);
  kernels::GroupedLinearParams product{.x = b.gate_up,
                                       .weights = {},
                                       .offsets = b.offsets,
                                       .y = b.outputs,
                                       .x_stride = moe.expert.inner_columns(),
                                       .y_stride = columns,
                                       .num_rows = step.num_tokens * moe.top_k};
  const kernels::ChosenSum sum{.places = b.places,
                               .weights = b.chosen_weights,
                               .y = to.y,
                               .y_stride = columns,
                               .num_rows = step.num_tokens,
                               .top_k = moe.top_k,
                               .add = to.add,
                               .addend = to.addend};
  if (weights.down_groups.size() == 1 && !moe.weight_on_input) {
    product.weights = weights.down_groups.front();
    if (kernels::CanFuseGroupedSum(product, sum)) {
      product.sum = sum;
      return kernels::GroupedLinear(*step.backend, product);
    }
  }
  QUIRE_RETURN_IF_ERROR(ApplyGroups(*step.backend, weights.down_groups, product));
  return kernels::SumChosenRows(*step.backend,
                                {.x = b.outputs,
                                 .places = sum.places,
                                 .weights = moe.weight_on_input ? nullptr : sum.weights,
                                 .y = sum.y,
                                 .x_stride = columns,
                                 .y_stride = columns,
                                 .num_rows = sum.num_rows,
                                 .top_k = sum.top_k,
                                 .columns = columns,
                                 .add = sum.add,
                                 .addend = sum.addend});
}

// Adds MoeBuffers::sum, and the dense MLP if there is one, to the residual stream.
absl::Status AddSum(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights) {
  float* const sum = step.buffers->moe.sum;
  if (layer.mlp == MlpKind::kDenseAndMoe) {
    QUIRE_RETURN_IF_ERROR(NormInPlace(step, layer.moe_out, weights.moe_out, sum));
    QUIRE_RETURN_IF_ERROR(kernels::ResidualAdd(*step.backend, {.x = sum,
                                                               .branch = step.buffers->dense_out,
                                                               .x_stride = step.hidden,
                                                               .branch_stride = step.hidden,
                                                               .num_rows = step.num_tokens,
                                                               .columns = step.hidden}));
  }
  return AddBranch(step, MlpOutput(layer, weights), sum);
}

// Computes all experts behind a latent projection at once. Writes their weighted sum to
// MoeBuffers::sum, plus its previous value if `with_sum` is true.
absl::Status RunLatentGroups(const StepContext& step, const MoeSpec& moe, const MoeWeights& weights,
                             kernels::ConstFloatPtr input, bool with_sum) {
  const MoeBuffers& b = step.buffers->moe;
  QUIRE_RETURN_IF_ERROR(ComputeLatentInput(step, moe, weights, input));
  QUIRE_RETURN_IF_ERROR(ComputeInnerOfGroups(step, moe, weights.gate_up_groups, b.latent_in));
  QUIRE_RETURN_IF_ERROR(ComputeDownOfGroups(step, moe, weights, {.y = b.latent_sum}));
  // latent_in is reused, because the experts have read it.
  QUIRE_ASSIGN_OR_RETURN(const ProductRows sums,
                         ProductInput(step, b.latent_sum, moe.latent, moe.latent, b.latent_in));
  return ComputeLatentOutput(step, moe, weights, sums.x, with_sum ? b.sum : nullptr);
}

// Computes all experts at once, on a GPU, with sums in the order of RunExperts. A shared expert
// without a gate is computed first and added in the same launch as the chosen ones. The result has
// the same bits, since adding two f32 values is commutative.
absl::Status RunOnGpu(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                      kernels::ConstFloatPtr input) {
  const MoeSpec& moe = layer.moe;
  const MoeBuffers& b = step.buffers->moe;
  const BranchOutput output = MlpOutput(layer, weights);
  const bool shared_first = moe.shared && !moe.shared_gate;
  const bool is_latent = moe.latent != 0;
  const bool adds_to_residual =
      output.is_sum() && (!moe.shared || shared_first) && !is_latent && layer.mlp == MlpKind::kMoe;
  if (shared_first) {
    QUIRE_RETURN_IF_ERROR(RunShared(step, moe, weights.moe, input, /*add=*/false));
  }
  if (is_latent) {
    QUIRE_RETURN_IF_ERROR(RunLatentGroups(step, moe, weights.moe, input, shared_first));
  } else {
    QUIRE_RETURN_IF_ERROR(ComputeInnerOfGroups(step, moe, weights.moe.gate_up_groups, input));
    QUIRE_RETURN_IF_ERROR(ComputeDownOfGroups(step, moe, weights.moe,
                                              {.y = adds_to_residual ? step.buffers->x : b.sum,
                                               .add = adds_to_residual,
                                               .addend = shared_first ? b.sum : nullptr}));
  }
  if (adds_to_residual) return absl::OkStatus();
  if (moe.shared && !shared_first) {
    QUIRE_RETURN_IF_ERROR(RunShared(step, moe, weights.moe, input, /*add=*/true));
  }
  return AddSum(step, layer, weights);
}

// Routes the tokens and returns the input of the experts, norm(x).
absl::StatusOr<kernels::ConstFloatPtr> RouteInput(const StepContext& step, const MoeSpec& moe,
                                                  const MoeWeights& weights, const NormSpec& norm,
                                                  const float* norm_weight) {
  const bool has_norm = moe.router_norm.kind != NormKind::kNone;
  if (has_norm) {
    // The two norms use the same buffer, one after the other.
    QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr routed,
                           BranchInput(step, moe.router_norm, weights.router_norm));
    QUIRE_RETURN_IF_ERROR(Route(step, moe, weights, routed));
  }
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input, BranchInput(step, norm, norm_weight));
  if (!has_norm) QUIRE_RETURN_IF_ERROR(Route(step, moe, weights, input));
  return input;
}

// Writes dense_out = norm(down(act(gate(norm(x))) * up(norm(x)))).
absl::Status ComputeDenseMlp(const StepContext& step, const LayerSpec& layer,
                             const LayerWeights& weights) {
  const StepBuffers& b = *step.buffers;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.mlp_in, weights.mlp_in));
  QUIRE_RETURN_IF_ERROR(GatedProjection(step, layer.dense, weights.gate_up,
                                        {.x = input, .y = b.gate_up, .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.down,
                                    {.x = b.gate_up,
                                     .weight = nullptr,
                                     .y = b.dense_out,
                                     .x_stride = layer.dense.inner_columns(),
                                     .y_stride = step.hidden,
                                     .num_rows = step.num_tokens}));
  return NormInPlace(step, layer.dense_out, weights.dense_out, b.dense_out);
}

}  // namespace

absl::Status MoeBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const MoeSpec& moe = layer.moe;
  const bool has_dense = layer.mlp == MlpKind::kDenseAndMoe;
  if (has_dense) QUIRE_RETURN_IF_ERROR(ComputeDenseMlp(step, layer, weights));
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         RouteInput(step, moe, weights.moe, has_dense ? layer.moe_in : layer.mlp_in,
                                    has_dense ? weights.moe_in : weights.mlp_in));
  if (step.backend->cuda() != nullptr) return RunOnGpu(step, layer, weights, input);
  QUIRE_RETURN_IF_ERROR(RunExperts(step, moe, weights.moe, input));
  if (moe.shared) QUIRE_RETURN_IF_ERROR(RunShared(step, moe, weights.moe, input, /*add=*/true));
  return AddSum(step, layer, weights);
}

}  // namespace quire::models
