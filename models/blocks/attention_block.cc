#include "models/blocks/attention_block.h"

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/kv_store.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace quire::models {
namespace {

const float* OrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// Row layout of the qkv buffer, in elements.
struct QkvLayout {
  explicit QkvLayout(const AttentionSpec& heads)
      : q_width(std::int64_t{heads.num_heads} * heads.head_size),
        kv_width(std::int64_t{heads.num_kv_heads} * heads.head_size),
        width(q_width + 2 * kv_width) {}
  std::int64_t q_width;
  std::int64_t kv_width;
  std::int64_t width;
};

// qkv = rope(W norm(x) + bias)
absl::Status ProjectAndRotate(const StepContext& step, const LayerSpec& layer,
                              const LayerWeights& weights, const QkvLayout& layout) {
  const AttentionSpec& heads = layer.heads;
  const StepBuffers& b = *step.buffers;
  QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(*step.backend, {.x = b.x,
                                                         .weight = weights.attn_in.data(),
                                                         .y = b.normed,
                                                         .x_stride = step.hidden,
                                                         .y_stride = step.hidden,
                                                         .num_rows = step.num_tokens,
                                                         .hidden = step.hidden,
                                                         .epsilon = layer.attn_in.eps}));
  QUIRE_RETURN_IF_ERROR(kernels::Linear(*step.backend, {.x = b.normed,
                                                        .weight = &weights.qkv.packed,
                                                        .bias = OrNull(weights.qkv.bias),
                                                        .y = b.qkv,
                                                        .x_stride = step.hidden,
                                                        .y_stride = layout.width,
                                                        .num_rows = step.num_tokens}));
  // Heads of q and k lie side by side, so one call rotates both.
  const RopeAngles& angles = step.angles[static_cast<std::size_t>(heads.rope)];
  return kernels::Rope(*step.backend, {.x = b.qkv,
                                       .cosines = angles.cosines,
                                       .sines = angles.sines,
                                       .x_stride = layout.width,
                                       .num_rows = step.num_tokens,
                                       .num_heads = heads.num_heads + heads.num_kv_heads,
                                       .head_size = heads.head_size,
                                       .rotary_size = heads.rotary_size,
                                       .rotary_first = heads.rotary_first});
}

// Writes K and V of the step, then attended = attention(q, cache).
absl::Status StoreAndAttend(const StepContext& step, const AttentionSpec& heads,
                            std::uint32_t cache_layer, const QkvLayout& layout) {
  const StepBuffers& b = *step.buffers;
  const kernels::AnyKvView keys = kernels::KeyView(*step.kv, cache_layer);
  const kernels::AnyKvView values = kernels::ValueView(*step.kv, cache_layer);
  QUIRE_RETURN_IF_ERROR(
      kernels::KvStore(*step.backend, {.keys = &keys,
                                       .values = &values,
                                       .k = b.qkv + layout.q_width,
                                       .v = b.qkv + layout.q_width + layout.kv_width,
                                       .row_offsets = b.row_offsets,
                                       .k_stride = layout.width,
                                       .v_stride = layout.width,
                                       .batch_size = step.batch_size}));
  return kernels::PagedAttention(*step.backend, {.keys = &keys,
                                                 .values = &values,
                                                 .q = b.qkv,
                                                 .out = b.attended,
                                                 .row_offsets = b.row_offsets,
                                                 .q_stride = layout.width,
                                                 .out_stride = layout.q_width,
                                                 .batch_size = step.batch_size,
                                                 .num_heads = heads.num_heads,
                                                 .scale = heads.scale});
}

}  // namespace

absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, std::uint32_t cache_layer) {
  const QkvLayout layout(layer.heads);
  const StepBuffers& b = *step.buffers;
  QUIRE_RETURN_IF_ERROR(ProjectAndRotate(step, layer, weights, layout));
  QUIRE_RETURN_IF_ERROR(StoreAndAttend(step, layer.heads, cache_layer, layout));
  return kernels::Linear(*step.backend, {.x = b.attended,
                                         .weight = &weights.o.packed,
                                         .bias = OrNull(weights.o.bias),
                                         .residual = b.x,
                                         .y = b.x,
                                         .x_stride = layout.q_width,
                                         .residual_stride = step.hidden,
                                         .y_stride = step.hidden,
                                         .num_rows = step.num_tokens});
}

}  // namespace quire::models
