#pragma once

// The branches of a layer, attention and MLP: how they read the residual stream and are added to
// it.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/float_ptr.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Returns the input of a branch in the dtype of activations: norm(x), written to the buffer normed,
// or x itself if there is no norm.
absl::StatusOr<kernels::ConstFloatPtr> BranchInput(const StepContext& step, const NormSpec& norm,
                                                   const float* weight);

// Rows that a product reads.
struct ProductRows {
  kernels::ConstFloatPtr x;
  std::int64_t stride;
};

// Returns the f32 rows `x` in the dtype of activations. If that is f32, returns `x` itself.
// Otherwise returns a converted copy in `rounded`, whose rows are `columns` apart.
absl::StatusOr<ProductRows> ProductInput(const StepContext& step, const float* x,
                                         std::int64_t stride, std::uint32_t columns,
                                         kernels::FloatPtr rounded);

// How a branch is added to the residual stream: x = (x + scale * norm(branch)) * output_scale *
// stored_scale.
struct BranchOutput {
  const NormSpec* norm;
  const float* norm_weight;
  float scale;
  float output_scale;         // LayerSpec::output_scale for the last branch, else 1
  const float* stored_scale;  // output_scale tensor for the last branch; null: 1

  // True if the branch is added unchanged, so that its last linear layer can add it.
  bool is_sum() const {
    return norm->kind == NormKind::kNone && scale == 1 && output_scale == 1 &&
           stored_scale == nullptr;
  }
};
BranchOutput AttentionOutput(const LayerSpec& layer, const LayerWeights& weights);
BranchOutput MlpOutput(const LayerSpec& layer, const LayerWeights& weights);
// Returns how the branch of LayerSpec::input is added.
BranchOutput InputBranchOutput(const LayerSpec& layer, const LayerWeights& weights);

// Adds the branch W input (+ bias) to the residual stream. Rows of `input` are input_stride apart.
// With a communicator, W and `input` are a rank's part, and the products of all ranks are summed.
// Uses the buffer `branch`, unless there is no communicator and output.is_sum() is true.
// REQUIRES: `input` is not the buffer normed.
absl::Status AddProduct(const StepContext& step, const BranchOutput& output,
                        const LinearWeights& weights, kernels::ConstFloatPtr input,
                        std::int64_t input_stride);

// Computes x = norm(x), or leaves x unchanged if there is no norm. Rows have `hidden` elements.
absl::Status NormInPlace(const StepContext& step, const NormSpec& norm, const float* weight,
                         float* x);

// Adds the branch [num_tokens, hidden] to the residual stream. Overwrites the branch if there is a
// norm.
absl::Status AddBranch(const StepContext& step, const BranchOutput& output, float* branch);

}  // namespace quire::models
