#include "models/blocks/branch.h"

#include "base/status.h"
#include "kernels/comm/communicator.h"
#include "kernels/elementwise/residual.h"
#include "kernels/norm/norm.h"

namespace quire::models {
namespace {

absl::Status Norm(const StepContext& step, const NormSpec& norm, const float* weight,
                  kernels::ConstFloatPtr x, kernels::FloatPtr y) {
  return kernels::RmsNorm(*step.backend, {.x = x,
                                          .weight = weight,
                                          .y = y,
                                          .x_stride = step.hidden,
                                          .y_stride = step.hidden,
                                          .num_rows = step.num_tokens,
                                          .hidden = step.hidden,
                                          .epsilon = norm.eps});
}

// Returns the factor of the residual stream after the layer. A stored one is in host memory, since
// GPUs do not support it.
float OutputScale(const LayerSpec& layer, const LayerWeights& weights) {
  return layer.has_output_scale ? layer.output_scale * weights.output_scale[0] : layer.output_scale;
}

// Returns the factor of the residual stream after the attention or MLP branch.
float ScaleAfter(const LayerSpec& layer, const LayerWeights& weights, bool is_last) {
  return is_last && layer.input.size == 0 ? OutputScale(layer, weights) : 1;
}

}  // namespace

absl::StatusOr<kernels::ConstFloatPtr> BranchInput(const StepContext& step, const NormSpec& norm,
                                                   const float* weight) {
  const StepBuffers& b = *step.buffers;
  if (norm.kind == NormKind::kNone) {
    if (b.normed.is_f32()) return kernels::ConstFloatPtr(b.x);
    QUIRE_RETURN_IF_ERROR(kernels::RoundRows(*step.backend, {.x = b.x,
                                                             .y = b.normed.as<BF16>(),
                                                             .x_stride = step.hidden,
                                                             .y_stride = step.hidden,
                                                             .num_rows = step.num_tokens,
                                                             .columns = step.hidden}));
    return kernels::ConstFloatPtr(b.normed);
  }
  QUIRE_RETURN_IF_ERROR(Norm(step, norm, weight, b.x, b.normed));
  return kernels::ConstFloatPtr(b.normed);
}

BranchOutput AttentionOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return {&layer.attn_out, weights.attn_out, layer.residual_scale,
          ScaleAfter(layer, weights, /*is_last=*/layer.mlp == MlpKind::kNone)};
}

BranchOutput MlpOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return {&layer.mlp_out, weights.mlp_out, layer.residual_scale,
          ScaleAfter(layer, weights, /*is_last=*/true)};
}

BranchOutput InputOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return {&layer.input.norm, weights.input_out_norm, layer.residual_scale,
          OutputScale(layer, weights)};
}

absl::Status NormInPlace(const StepContext& step, const NormSpec& norm, const float* weight,
                         float* x) {
  return norm.kind == NormKind::kNone ? absl::OkStatus() : Norm(step, norm, weight, x, x);
}

absl::Status AddProduct(const StepContext& step, const BranchOutput& output,
                        const LinearWeights& weights, kernels::ConstFloatPtr input,
                        std::int64_t input_stride) {
  const StepBuffers& b = *step.buffers;
  if (output.is_sum() && step.comm == nullptr) {
    return ApplyLinear(*step.backend, weights,
                       {.x = input,
                        .weight = nullptr,
                        .residual = b.x,
                        .y = b.x,
                        .x_stride = input_stride,
                        .residual_stride = step.hidden,
                        .y_stride = step.hidden,
                        .num_rows = step.num_tokens});
  }
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.branch,
                                     .x_stride = input_stride,
                                     .y_stride = step.hidden,
                                     .num_rows = step.num_tokens}));
  if (step.comm != nullptr) {
    QUIRE_RETURN_IF_ERROR(
        step.comm->AllReduceSum({b.branch, std::size_t{step.num_tokens} * step.hidden}));
  }
  return AddBranch(step, output, b.branch);
}

absl::Status AddBranch(const StepContext& step, const BranchOutput& output, float* branch) {
  QUIRE_RETURN_IF_ERROR(NormInPlace(step, *output.norm, output.norm_weight, branch));
  return kernels::ResidualAdd(*step.backend, {.x = step.buffers->x,
                                              .branch = branch,
                                              .x_stride = step.hidden,
                                              .branch_stride = step.hidden,
                                              .num_rows = step.num_tokens,
                                              .columns = step.hidden,
                                              .scale = output.scale,
                                              .output_scale = output.output_scale});
}

}  // namespace quire::models
