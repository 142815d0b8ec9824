#include "models/blocks/input_block.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/residual.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "models/blocks/branch.h"
#include "models/blocks/mlp_block.h"

namespace quire::models {
namespace {

// Returns the number of floats from the inputs of one token to those of the next. A token has an
// input for each layer.
std::int64_t InputStride(const ModelSpec& spec) {
  return std::int64_t{spec.layer_inputs.size} * static_cast<std::int64_t>(spec.layers.size());
}

// Writes norm(projection_scale * W_context x), layer by layer, to the buffer layer_context and
// returns 1. Without a norm, writes W_context x and returns projection_scale, by which the caller
// must multiply the values.
absl::StatusOr<float> ProjectContext(const StepContext& step, const ModelSpec& spec,
                                     const Weights& weights) {
  const PerLayerInputSpec& inputs = spec.layer_inputs;
  const StepBuffers& b = *step.buffers;
  const std::int64_t stride = InputStride(spec);
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr x,
                         BranchInput(step, /*norm=*/{}, /*weight=*/nullptr));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.input_context(),
                                    {.x = x,
                                     .weight = nullptr,
                                     .y = b.layer_context,
                                     .x_stride = step.hidden,
                                     .y_stride = stride,
                                     .num_rows = step.num_tokens}));
  if (inputs.norm.kind == NormKind::kNone) return inputs.projection_scale;
  // Dividing epsilon by scale^2 has the same effect as multiplying the values by scale.
  const float scale = inputs.projection_scale;
  QUIRE_RETURN_IF_ERROR(
      kernels::RmsNorm(*step.backend, {.x = b.layer_context,
                                       .weight = weights.input_norm(),
                                       .y = b.layer_context,
                                       .x_stride = stride,
                                       .y_stride = stride,
                                       .num_rows = step.num_tokens,
                                       .hidden = inputs.size,
                                       .epsilon = inputs.norm.eps / (scale * scale),
                                       .groups = static_cast<std::uint32_t>(spec.layers.size())}));
  return 1.0f;
}

}  // namespace

absl::Status ComputeLayerInputs(const StepContext& step, const ModelSpec& spec,
                                const Weights& weights) {
  const PerLayerInputSpec& inputs = spec.layer_inputs;
  const StepBuffers& b = *step.buffers;
  const std::int64_t stride = InputStride(spec);
  QUIRE_RETURN_IF_ERROR(
      kernels::Embedding(*step.backend, {.table = weights.input_embedding(),
                                         .tokens = b.tokens,
                                         .y = b.layer_inputs,
                                         .y_stride = stride,
                                         .dtype = weights.input_embedding_dtype(),
                                         .vocab = inputs.vocab,
                                         .hidden = static_cast<std::uint32_t>(stride),
                                         .num_rows = step.num_tokens,
                                         .scale = inputs.embed_scale}));
  QUIRE_ASSIGN_OR_RETURN(const float scale, ProjectContext(step, spec, weights));
  return kernels::ResidualAdd(*step.backend, {.x = b.layer_inputs,
                                              .branch = b.layer_context,
                                              .x_stride = stride,
                                              .branch_stride = stride,
                                              .num_rows = step.num_tokens,
                                              .columns = static_cast<std::uint32_t>(stride),
                                              .scale = scale,
                                              .output_scale = inputs.scale});
}

absl::Status InputBlock(const StepContext& step, const ModelSpec& spec, const LayerWeights& weights,
                        std::size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const StepBuffers& b = *step.buffers;
  const std::int64_t size = layer.input.size;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr x,
                         BranchInput(step, /*norm=*/{}, /*weight=*/nullptr));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.input_gate,
                                    {.x = x,
                                     .weight = nullptr,
                                     .y = b.gate_up,
                                     .x_stride = step.hidden,
                                     .y_stride = size,
                                     .num_rows = step.num_tokens}));
  const kernels::ConstFloatPtr input = b.layer_inputs + static_cast<std::int64_t>(index) * size;
  QUIRE_RETURN_IF_ERROR(
      kernels::GatedProduct(*step.backend, {.gate = b.gate_up,
                                            .up = input,
                                            .y = b.gate_up,
                                            .gate_stride = size,
                                            .up_stride = InputStride(spec),
                                            .y_stride = size,
                                            .num_rows = step.num_tokens,
                                            .columns = layer.input.size,
                                            .shape = GateShapeOf({.act = layer.input.act})}));
  return AddProduct(step, InputBranchOutput(layer, weights), weights.input_out, b.gate_up, size);
}

}  // namespace quire::models
