#include "models/blocks/mlp_block.h"

#include "base/status.h"
#include "kernels/linear/linear.h"
#include "models/blocks/branch.h"

namespace quire::models {

kernels::GateShape GateShapeOf(const MlpSpec& mlp) {
  return {.act = mlp.act, .alpha = mlp.alpha, .limit = mlp.limit, .up_offset = mlp.up_offset};
}

absl::Status Activate(const StepContext& step, const MlpSpec& mlp, kernels::FloatPtr y,
                      std::uint32_t num_rows) {
  const std::int64_t stride = mlp.inner_columns();
  kernels::ConstFloatPtr up;
  if (mlp.gated) up = y + std::int64_t{mlp.intermediate};
  return kernels::GatedProduct(*step.backend, {.gate = y,
                                               .up = up,
                                               .y = y,
                                               .gate_stride = stride,
                                               .up_stride = stride,
                                               .y_stride = stride,
                                               .num_rows = num_rows,
                                               .columns = mlp.intermediate,
                                               .shape = GateShapeOf(mlp)});
}

absl::Status GatedProjection(const StepContext& step, const MlpSpec& mlp,
                             const LinearWeights& gate_up, const GatedRows& rows) {
  kernels::LinearParams product{.x = rows.x,
                                .weight = nullptr,
                                .y = rows.y,
                                .x_stride = gate_up.matrices.front().k(),
                                .y_stride = mlp.inner_columns(),
                                .num_rows = rows.num_rows};
  if (mlp.gated && gate_up.matrices.size() == 1 &&
      kernels::CanFuseGate(*step.backend, gate_up.matrices[0], rows.x.dtype(), rows.y.dtype())) {
    product.gate = GateShapeOf(mlp);
    return ApplyLinear(*step.backend, gate_up, product);
  }
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, gate_up, product));
  return Activate(step, mlp, rows.y, rows.num_rows);
}

absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const StepBuffers& b = *step.buffers;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.mlp_in, weights.mlp_in));
  QUIRE_RETURN_IF_ERROR(GatedProjection(step, layer.dense, weights.gate_up,
                                        {.x = input, .y = b.gate_up, .num_rows = step.num_tokens}));
  return AddProduct(step, MlpOutput(layer, weights), weights.down, b.gate_up,
                    layer.dense.inner_columns());
}

}  // namespace quire::models
