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

// Returns how a branch is added. The last branch of a layer also applies the layer's output scales.
BranchOutput OutputOf(const LayerSpec& layer, const LayerWeights& weights, const NormSpec& norm,
                      const float* norm_weight, bool is_last) {
  return {&norm, norm_weight, layer.residual_scale, is_last ? layer.output_scale : 1,
          is_last ? weights.output_scale : nullptr};
}

}  // namespace

absl::StatusOr<kernels::ConstFloatPtr> BranchInput(const StepContext& step, const NormSpec& norm,
                                                   const float* weight) {
  const StepBuffers& b = *step.buffers;
  if (norm.kind == NormKind::kNone) {
    QUIRE_ASSIGN_OR_RETURN(const ProductRows rows,
                           ProductInput(step, b.x, step.hidden, step.hidden, b.normed));
    return rows.x;
  }
  QUIRE_RETURN_IF_ERROR(Norm(step, norm, weight, b.x, b.normed));
  return kernels::ConstFloatPtr(b.normed);
}

absl::StatusOr<ProductRows> ProductInput(const StepContext& step, const float* x,
                                         std::int64_t stride, std::uint32_t columns,
                                         kernels::FloatPtr rounded) {
  if (step.buffers->normed.is_f32()) return ProductRows{x, stride};
  QUIRE_RETURN_IF_ERROR(kernels::RoundRows(*step.backend, {.x = x,
                                                           .y = rounded.as<BF16>(),
                                                           .x_stride = stride,
                                                           .y_stride = columns,
                                                           .num_rows = step.num_tokens,
                                                           .columns = columns}));
  return ProductRows{rounded, columns};
}

BranchOutput AttentionOutput(const LayerSpec& layer, const LayerWeights& weights) {
  const bool is_last = layer.mlp == MlpKind::kNone && layer.input.size == 0;
  return OutputOf(layer, weights, layer.attn_out, weights.attn_out, is_last);
}

BranchOutput MlpOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return OutputOf(layer, weights, layer.mlp_out, weights.mlp_out, layer.input.size == 0);
}

BranchOutput InputBranchOutput(const LayerSpec& layer, const LayerWeights& weights) {
  return OutputOf(layer, weights, layer.input.norm, weights.input_out_norm, /*is_last=*/true);
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
                                              .output_scale = output.output_scale,
                                              .stored_scale = output.stored_scale});
}

}  // namespace quire::models
