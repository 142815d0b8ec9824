#include "models/blocks/short_conv_block.h"

#include <cstdint>

#include "base/status.h"
#include "kernels/elementwise/multiply.h"
#include "kernels/linear/linear.h"
#include "kernels/recurrent/causal_conv.h"
#include "models/blocks/branch.h"
#include "models/blocks/recurrent_block.h"

namespace quire::models {

absl::Status ShortConvBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place) {
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.attn_in, weights.attn_in));
  const std::int64_t stride = 3 * std::int64_t{step.hidden};
  float* const rows = step.buffers->recurrent.in;  // B, C, v
  float* const v = rows + 2 * std::int64_t{step.hidden};
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.short_conv.in,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = rows,
                                     .x_stride = step.hidden,
                                     .y_stride = stride,
                                     .num_rows = step.num_tokens}));
  const auto multiply = [&](const float* gate) {
    return kernels::Multiply(*step.backend, {.x = v,
                                             .gate = gate,
                                             .x_stride = stride,
                                             .gate_stride = stride,
                                             .num_rows = step.num_tokens,
                                             .columns = step.hidden});
  };
  QUIRE_RETURN_IF_ERROR(multiply(rows));
  QUIRE_RETURN_IF_ERROR(kernels::CausalConv(*step.backend, {.rows = StateRowsOf(step, place, 0),
                                                            .x = v,
                                                            .weight = weights.short_conv.conv,
                                                            .x_stride = stride,
                                                            .channels = step.hidden,
                                                            .width = layer.short_conv.width,
                                                            .silu = false}));
  QUIRE_RETURN_IF_ERROR(multiply(rows + step.hidden));
  QUIRE_ASSIGN_OR_RETURN(const ProductRows gated, ProductInput(step, v, stride, step.hidden,
                                                               step.buffers->recurrent.rounded));
  return AddProduct(step, AttentionOutput(layer, weights), weights.short_conv.out, gated.x,
                    gated.stride);
}

}  // namespace quire::models
