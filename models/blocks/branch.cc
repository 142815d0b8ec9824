#include "models/blocks/branch.h"

#include "base/status.h"
#include "kernels/comm/communicator.h"
#include "kernels/elementwise/residual.h"
#include "kernels/norm/norm.h"

namespace quire::models {
namespace {

kernels::RmsNormParams NormParams(const StepContext& step, const NormSpec& norm,
                                  const float* weight, kernels::ConstFloatPtr x,
                                  kernels::FloatPtr y) {
  return {.x = x,
          .weight = weight,
          .y = y,
          .x_stride = step.hidden,
          .y_stride = step.hidden,
          .num_rows = step.num_tokens,
          .hidden = step.hidden,
          .epsilon = norm.eps};
}

// Whether a branch reads the stream as it is.
bool ReadsStream(const StepContext& step, const NormSpec& norm) {
  return norm.kind == NormKind::kNone && step.buffers->normed.is_f32();
}

}  // namespace

absl::Status PutInput(const StepContext& step, const BranchNorm& next) {
  const StepBuffers& b = *step.buffers;
  if (next.spec == nullptr || ReadsStream(step, *next.spec)) return absl::OkStatus();
  if (next.spec->kind != NormKind::kNone) {
    return kernels::RmsNorm(*step.backend,
                            NormParams(step, *next.spec, next.weight, b.x, b.normed));
  }
  return kernels::RoundRows(*step.backend, {.x = b.x,
                                            .y = b.normed.as<BF16>(),
                                            .x_stride = step.hidden,
                                            .y_stride = step.hidden,
                                            .num_rows = step.num_tokens,
                                            .columns = step.hidden});
}

absl::StatusOr<kernels::ConstFloatPtr> BranchInput(const StepContext& step, const BranchNorm& norm,
                                                   bool has_input) {
  if (!has_input) QUIRE_RETURN_IF_ERROR(PutInput(step, norm));
  if (ReadsStream(step, *norm.spec)) return kernels::ConstFloatPtr(step.buffers->x);
  return kernels::ConstFloatPtr(step.buffers->normed);
}

BranchOutput AttentionOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return {&layer.attn_out, weights.attn_out, layer.residual_scale, 1};
}

BranchOutput MlpOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return {&layer.mlp_out, weights.mlp_out, layer.residual_scale, layer.output_scale};
}

absl::Status JoinProduct(const StepContext& step, const BranchOutput& output,
                         const BranchProduct& product, const BranchNorm& next) {
  const StepBuffers& b = *step.buffers;
  kernels::LinearParams params{.x = product.input,
                               .weight = nullptr,
                               .y = b.branch,
                               .x_stride = product.input_stride,
                               .residual_stride = step.hidden,
                               .y_stride = step.hidden,
                               .num_rows = step.num_tokens};
  if (output.is_sum() && step.comm == nullptr) {
    params.residual = b.x;
    params.y = b.x;
    if (next.spec == nullptr || next.spec->kind == NormKind::kNone) {
      QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, *product.weights, params));
      return PutInput(step, next);
    }
    const kernels::RmsNormParams norm = NormParams(step, *next.spec, next.weight, b.x, b.normed);
    params.norm = &norm;
    return ApplyLinear(*step.backend, *product.weights, params);
  }
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, *product.weights, params));
  if (step.comm != nullptr) {
    QUIRE_RETURN_IF_ERROR(
        step.comm->AllReduceSum({b.branch, std::size_t{step.num_tokens} * step.hidden}));
  }
  return JoinBranch(step, output, b.branch, next);
}

absl::Status JoinBranch(const StepContext& step, const BranchOutput& output, float* branch,
                        const BranchNorm& next) {
  if (output.norm->kind != NormKind::kNone) {
    QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(
        *step.backend, NormParams(step, *output.norm, output.norm_weight, branch, branch)));
  }
  QUIRE_RETURN_IF_ERROR(kernels::ResidualAdd(*step.backend, {.x = step.buffers->x,
                                                             .branch = branch,
                                                             .x_stride = step.hidden,
                                                             .branch_stride = step.hidden,
                                                             .num_rows = step.num_tokens,
                                                             .columns = step.hidden,
                                                             .scale = output.scale,
                                                             .output_scale = output.output_scale}));
  return PutInput(step, next);
}

}  // namespace quire::models
