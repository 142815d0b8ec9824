#pragma once

// How the branches of a layer, attention and MLP, leave the residual stream and come back to it.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/float_ptr.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// What a branch reads, in the type of the activations: norm(x), written to normed, or where the
// slot has no norm x itself.
absl::StatusOr<kernels::ConstFloatPtr> BranchInput(const StepContext& step, const NormSpec& norm,
                                                   const float* weight);

// How a branch joins the stream: x = (x + scale * norm(branch)) * output_scale.
struct BranchOutput {
  const NormSpec* norm;
  const float* norm_weight;
  float scale;
  float output_scale;  // of the layer, with its last branch

  // x += branch, which the last product of the branch does by itself.
  bool is_sum() const { return norm->kind == NormKind::kNone && scale == 1 && output_scale == 1; }
};
BranchOutput AttentionOutput(const LayerSpec& layer, const LayerWeights& weights);
BranchOutput MlpOutput(const LayerSpec& layer, const LayerWeights& weights);

// The branch W input (+ bias) joins the stream, by way of branch unless it is a plain sum. Rows of
// input, which is not normed, lie input_stride apart. With a communicator W and input are a rank's
// part, and the branch is the sum over the ranks.
absl::Status JoinProduct(const StepContext& step, const BranchOutput& output,
                         const LinearWeights& weights, kernels::ConstFloatPtr input,
                         std::int64_t input_stride);

// The branch [num_tokens, hidden] joins the stream; with a norm it is overwritten.
absl::Status JoinBranch(const StepContext& step, const BranchOutput& output, float* branch);

}  // namespace quire::models
