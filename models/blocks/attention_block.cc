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

}  // namespace

absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, std::uint32_t cache_layer) {
  const AttentionSpec& heads = layer.heads;
  const StepBuffers& b = *step.buffers;
  const std::int64_t hidden = step.hidden;
  const std::int64_t q_width = std::int64_t{heads.num_heads} * heads.head_size;
  const std::int64_t kv_width = std::int64_t{heads.num_kv_heads} * heads.head_size;
  const std::int64_t qkv_width = q_width + 2 * kv_width;

  QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(*step.backend, {.x = b.x,
                                                         .weight = weights.attn_in.data(),
                                                         .y = b.normed,
                                                         .x_stride = hidden,
                                                         .y_stride = hidden,
                                                         .num_rows = step.num_tokens,
                                                         .hidden = step.hidden,
                                                         .epsilon = layer.attn_in.eps}));
  QUIRE_RETURN_IF_ERROR(kernels::Linear(*step.backend, {.x = b.normed,
                                                        .weight = &weights.qkv.packed,
                                                        .bias = OrNull(weights.qkv.bias),
                                                        .y = b.qkv,
                                                        .x_stride = hidden,
                                                        .y_stride = qkv_width,
                                                        .num_rows = step.num_tokens}));
  // Heads of q and k lie side by side, so one call rotates both.
  const RopeAngles& angles = step.angles[static_cast<std::size_t>(heads.rope)];
  QUIRE_RETURN_IF_ERROR(
      kernels::Rope(*step.backend, {.x = b.qkv,
                                    .cosines = angles.cosines,
                                    .sines = angles.sines,
                                    .x_stride = qkv_width,
                                    .num_rows = step.num_tokens,
                                    .num_heads = heads.num_heads + heads.num_kv_heads,
                                    .head_size = heads.head_size,
                                    .rotary_size = heads.rotary_size,
                                    .rotary_first = heads.rotary_first}));
  const kernels::AnyKvView keys = kernels::KeyView(*step.kv, cache_layer);
  const kernels::AnyKvView values = kernels::ValueView(*step.kv, cache_layer);
  QUIRE_RETURN_IF_ERROR(kernels::KvStore(*step.backend, {.keys = &keys,
                                                         .values = &values,
                                                         .k = b.qkv + q_width,
                                                         .v = b.qkv + q_width + kv_width,
                                                         .row_offsets = b.row_offsets,
                                                         .k_stride = qkv_width,
                                                         .v_stride = qkv_width,
                                                         .batch_size = step.batch_size}));
  QUIRE_RETURN_IF_ERROR(kernels::PagedAttention(*step.backend, {.keys = &keys,
                                                                .values = &values,
                                                                .q = b.qkv,
                                                                .out = b.attended,
                                                                .row_offsets = b.row_offsets,
                                                                .q_stride = qkv_width,
                                                                .out_stride = q_width,
                                                                .batch_size = step.batch_size,
                                                                .num_heads = heads.num_heads,
                                                                .scale = heads.scale}));
  return kernels::Linear(*step.backend, {.x = b.attended,
                                         .weight = &weights.o.packed,
                                         .bias = OrNull(weights.o.bias),
                                         .residual = b.x,
                                         .y = b.x,
                                         .x_stride = q_width,
                                         .residual_stride = hidden,
                                         .y_stride = hidden,
                                         .num_rows = step.num_tokens});
}

}  // namespace quire::models
