#include "models/blocks/mlp_block.h"

#include "base/status.h"
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace quire::models {
absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights) {
  const StepBuffers& b = *step.buffers;
  const std::int64_t hidden = step.hidden;
  const std::int64_t inner = layer.dense.intermediate;

  QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(*step.backend, {.x = b.x,
                                                         .weight = weights.mlp_in,
                                                         .y = b.normed,
                                                         .x_stride = hidden,
                                                         .y_stride = hidden,
                                                         .num_rows = step.num_tokens,
                                                         .hidden = step.hidden,
                                                         .epsilon = layer.mlp_in.eps}));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.gate_up,
                                    {.x = b.normed,
                                     .weight = nullptr,
                                     .y = b.gate_up,
                                     .x_stride = hidden,
                                     .y_stride = 2 * inner,
                                     .num_rows = step.num_tokens}));
  QUIRE_RETURN_IF_ERROR(kernels::SiluProduct(*step.backend, {.gate = b.gate_up,
                                                             .up = b.gate_up + inner,
                                                             .y = b.gate_up,
                                                             .gate_stride = 2 * inner,
                                                             .up_stride = 2 * inner,
                                                             .y_stride = 2 * inner,
                                                             .num_rows = step.num_tokens,
                                                             .columns = layer.dense.intermediate}));
  return ApplyLinear(*step.backend, weights.down,
                     {.x = b.gate_up,
                      .weight = nullptr,
                      .residual = b.x,
                      .y = b.x,
                      .x_stride = 2 * inner,
                      .residual_stride = hidden,
                      .y_stride = hidden,
                      .num_rows = step.num_tokens});
}

}  // namespace quire::models
