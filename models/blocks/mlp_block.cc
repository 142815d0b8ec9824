#include "models/blocks/mlp_block.h"

#include "base/status.h"
#include "kernels/linear/linear.h"
#include "models/blocks/branch.h"

namespace quire::models {

kernels::GateShape GateShapeOf(const MlpSpec& mlp) {
  kernels::GateShape shape{.alpha = mlp.alpha, .limit = mlp.limit, .up_offset = mlp.up_offset};
  switch (mlp.act) {
    case Activation::kSilu:
      shape.act = kernels::Activation::kSilu;
      break;
    case Activation::kGeluTanh:
      shape.act = kernels::Activation::kGeluTanh;
      break;
    case Activation::kGeluErf:
      shape.act = kernels::Activation::kGeluErf;
      break;
    case Activation::kRelu2:
      shape.act = kernels::Activation::kRelu2;
      break;
  }
  return shape;
}

absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const StepBuffers& b = *step.buffers;
  const std::int64_t inner = layer.dense.intermediate;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.mlp_in, weights.mlp_in));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.gate_up,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.gate_up,
                                     .x_stride = step.hidden,
                                     .y_stride = 2 * inner,
                                     .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(kernels::GatedProduct(*step.backend, {.gate = b.gate_up,
                                                              .up = b.gate_up + inner,
                                                              .y = b.gate_up,
                                                              .gate_stride = 2 * inner,
                                                              .up_stride = 2 * inner,
                                                              .y_stride = 2 * inner,
                                                              .num_rows = step.num_tokens,
                                                              .columns = layer.dense.intermediate,
                                                              .shape = GateShapeOf(layer.dense)}));
  return JoinProduct(step, MlpOutput(layer, weights), weights.down, b.gate_up, 2 * inner);
}

}  // namespace quire::models
