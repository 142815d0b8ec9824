#include "models/blocks/attention_block.h"

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/qkv_store.h"

namespace quire::models {
namespace {

// Row layout of the qkv buffer, in elements.
struct QkvLayout {
  explicit QkvLayout(const AttentionSpec& heads)
      : q_width(std::int64_t{heads.num_heads} * heads.head_size),
        width(q_width + 2 * std::int64_t{heads.num_kv_heads} * heads.head_size) {}
  std::int64_t q_width;
  std::int64_t width;
};

// qkv = W norm(x) + bias
absl::Status Project(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                     const QkvLayout& layout) {
  const StepBuffers& b = *step.buffers;
  QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(*step.backend, {.x = b.x,
                                                         .weight = weights.attn_in,
                                                         .y = b.normed,
                                                         .x_stride = step.hidden,
                                                         .y_stride = step.hidden,
                                                         .num_rows = step.num_tokens,
                                                         .hidden = step.hidden,
                                                         .epsilon = layer.attn_in.eps}));
  return ApplyLinear(*step.backend, weights.qkv,
                     {.x = b.normed,
                      .weight = nullptr,
                      .y = b.qkv,
                      .x_stride = step.hidden,
                      .y_stride = layout.width,
                      .num_rows = step.num_tokens});
}

// Rotates q and k, writes K and V of the step, then attended = attention(q, cache).
absl::Status StoreAndAttend(const StepContext& step, const AttentionSpec& heads,
                            std::uint32_t cache_layer, const QkvLayout& layout) {
  const StepBuffers& b = *step.buffers;
  const kernels::AnyKvView keys = kernels::KeyView(*step.kv, cache_layer);
  const kernels::AnyKvView values = kernels::ValueView(*step.kv, cache_layer);
  const RopeAngles& angles = step.angles[static_cast<std::size_t>(heads.rope)];
  QUIRE_RETURN_IF_ERROR(kernels::QkvStore(*step.backend, {.keys = &keys,
                                                          .values = &values,
                                                          .qkv = b.qkv,
                                                          .qkv_stride = layout.width,
                                                          .cosines = angles.cosines,
                                                          .sines = angles.sines,
                                                          .row_offsets = b.row_offsets,
                                                          .token_rows = b.token_rows,
                                                          .positions = b.positions,
                                                          .batch_size = step.batch_size,
                                                          .num_rows = step.num_tokens,
                                                          .num_heads = heads.num_heads,
                                                          .rotary_size = heads.rotary_size,
                                                          .rotary_first = heads.rotary_first}));
  return kernels::PagedAttention(*step.backend, {.keys = &keys,
                                                 .values = &values,
                                                 .q = b.qkv,
                                                 .out = b.attended,
                                                 .row_offsets = b.row_offsets,
                                                 .q_stride = layout.width,
                                                 .out_stride = layout.q_width,
                                                 .batch_size = step.batch_size,
                                                 .num_heads = heads.num_heads,
                                                 .scale = heads.scale,
                                                 .plan = step.plan,
                                                 .maps = step.maps,
                                                 .layer = cache_layer});
}

}  // namespace

absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, std::uint32_t cache_layer) {
  const QkvLayout layout(layer.heads);
  const StepBuffers& b = *step.buffers;
  QUIRE_RETURN_IF_ERROR(Project(step, layer, weights, layout));
  QUIRE_RETURN_IF_ERROR(StoreAndAttend(step, layer.heads, cache_layer, layout));
  return ApplyLinear(*step.backend, weights.o,
                     {.x = b.attended,
                      .weight = nullptr,
                      .residual = b.x,
                      .y = b.x,
                      .x_stride = layout.q_width,
                      .residual_stride = step.hidden,
                      .y_stride = step.hidden,
                      .num_rows = step.num_tokens});
}

}  // namespace quire::models
