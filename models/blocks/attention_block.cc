#include "models/blocks/attention_block.h"

#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/norm/norm.h"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/rope/rope.h"
#include "models/blocks/branch.h"

namespace quire::models {
namespace {

// Row layout of the qkv buffer, in elements: q, k, v, and the output gate if there is one. A layer
// that reads the K and V of another one has no k and v.
struct QkvLayout {
  explicit QkvLayout(const LayerSpec& layer)
      : q_width(std::int64_t{layer.heads.num_heads} * layer.heads.head_size),
        k_width(layer.stores_kv() ? std::int64_t{layer.heads.num_kv_heads} * layer.heads.head_size
                                  : 0),
        gate_at(q_width + 2 * k_width),
        width(gate_at + (layer.heads.output_gate ? q_width : 0)) {}
  std::int64_t q_width;
  std::int64_t k_width;
  std::int64_t gate_at;
  std::int64_t width;
};

// True if QkvStore applies the norms of q and k.
bool QkvStoreAppliesNorms(const StepContext& step, const AttentionSpec& heads) {
  return step.backend->cuda() != nullptr && heads.qk_norm.kind == NormKind::kRms &&
         heads.qk_norm.has_weight && heads.qk_norm_scope == QkNormScope::kPerHead;
}

// True if no other operation is needed between the product and QkvStore, so that they can be fused.
bool CanFuseProductAndStore(const StepContext& step, const LayerSpec& layer) {
  const AttentionSpec& heads = layer.heads;
  const bool prepares_values =
      layer.stores_kv() && (heads.v_from_k || heads.v_norm.kind != NormKind::kNone);
  return !prepares_values &&
         (heads.qk_norm.kind == NormKind::kNone || QkvStoreAppliesNorms(step, heads));
}

// Normalizes q and k in place, per head or over all heads of a token. Runs before the rotation even
// if the spec has the norm after it: CheckSupported accepts such a spec only if the order does not
// matter.
absl::Status NormQueriesAndKeys(const StepContext& step, const LayerSpec& layer,
                                const LayerWeights& weights, const QkvLayout& layout) {
  const AttentionSpec& heads = layer.heads;
  if (heads.qk_norm.kind == NormKind::kNone || QkvStoreAppliesNorms(step, heads))
    return absl::OkStatus();
  const kernels::FloatPtr qkv = step.buffers->qkv;
  const struct {
    kernels::FloatPtr x;
    const float* weight;
    std::uint32_t num_heads;
  } parts[] = {{qkv, weights.q_norm, heads.num_heads},
               {qkv + layout.q_width, weights.k_norm, layer.stores_kv() ? heads.num_kv_heads : 0}};
  const bool whole = heads.qk_norm_scope == QkNormScope::kWhole;
  for (const auto& part : parts) {
    if (part.num_heads == 0) continue;
    QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(
        *step.backend, {.x = part.x,
                        .weight = part.weight,
                        .y = part.x,
                        .x_stride = layout.width,
                        .y_stride = layout.width,
                        .num_rows = step.num_tokens,
                        .hidden = whole ? part.num_heads * heads.head_size : heads.head_size,
                        .epsilon = heads.qk_norm.eps,
                        .groups = whole ? 1 : part.num_heads}));
  }
  return absl::OkStatus();
}

// Copies the projected k to v if the layer has no projection of v, and normalizes the heads of v.
// Must run before the norm of k.
absl::Status PrepareValues(const StepContext& step, const LayerSpec& layer,
                           const QkvLayout& layout) {
  const AttentionSpec& heads = layer.heads;
  const kernels::FloatPtr k = step.buffers->qkv + layout.q_width;
  const kernels::FloatPtr v = k + layout.k_width;
  if (heads.v_norm.kind != NormKind::kNone) {
    return kernels::RmsNorm(*step.backend, {.x = heads.v_from_k ? k : v,
                                            .y = v,
                                            .x_stride = layout.width,
                                            .y_stride = layout.width,
                                            .num_rows = step.num_tokens,
                                            .hidden = heads.head_size,
                                            .epsilon = heads.v_norm.eps,
                                            .groups = heads.num_kv_heads});
  }
  if (!heads.v_from_k) return absl::OkStatus();
  return kernels::GatherRows(*step.backend,
                             {.x = k,
                              .rows = nullptr,
                              .y = v,
                              .x_stride = layout.width,
                              .y_stride = layout.width,
                              .num_rows = step.num_tokens,
                              .columns = static_cast<std::uint32_t>(layout.k_width)});
}

// Computes qkv = W norm(x) + bias, rotates q and k, and writes K and V of the step to the cache if
// the layer stores them.
absl::Status ProjectAndStore(const StepContext& step, const LayerSpec& layer,
                             const LayerWeights& weights, kernels::ConstFloatPtr input,
                             const kernels::QkvStoreParams& store) {
  kernels::LinearParams product{.x = input,
                                .weight = nullptr,
                                .y = store.qkv,
                                .x_stride = step.hidden,
                                .y_stride = store.qkv_stride,
                                .num_rows = step.num_tokens};
  if (weights.qkv.matrices.size() == 1 && CanFuseProductAndStore(step, layer)) {
    product.store = &store;
    return ApplyLinear(*step.backend, weights.qkv, product);
  }
  const QkvLayout layout(layer);
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.qkv, product));
  if (layer.stores_kv()) QUIRE_RETURN_IF_ERROR(PrepareValues(step, layer, layout));
  QUIRE_RETURN_IF_ERROR(NormQueriesAndKeys(step, layer, weights, layout));
  return kernels::QkvStore(*step.backend, store);
}

kernels::QkvStoreParams StoreParams(const StepContext& step, const LayerSpec& layer,
                                    const LayerWeights& weights, const kernels::AnyKvView& keys,
                                    const kernels::AnyKvView& values) {
  const AttentionSpec& heads = layer.heads;
  const StepBuffers& b = *step.buffers;
  const bool rotates = heads.rope >= 0;
  const bool norms = QkvStoreAppliesNorms(step, heads);
  const RopeAngles angles =
      rotates ? step.angles[static_cast<std::size_t>(heads.rope)] : RopeAngles{nullptr, nullptr};
  return {.keys = &keys,
          .values = &values,
          .qkv = b.qkv,
          .qkv_stride = QkvLayout(layer).width,
          .cosines = angles.cosines,
          .sines = angles.sines,
          .row_offsets = b.row_offsets,
          .token_rows = b.token_rows,
          .positions = b.positions,
          .batch_size = step.batch_size,
          .num_rows = step.num_tokens,
          .num_heads = heads.num_heads,
          .rotary_size = rotates ? heads.rotary_size : 0,
          .rotary_first = rotates ? heads.rotary_first : 0,
          .style = heads.rope_style == RopeStyle::kHalf ? kernels::RopeStyle::kHalf
                                                        : kernels::RopeStyle::kInterleaved,
          .q_norm = norms ? weights.q_norm : nullptr,
          .k_norm = norms ? weights.k_norm : nullptr,
          .norm_epsilon = heads.qk_norm.eps,
          .q_scale = {.beta = heads.q_position_scale.beta,
                      .period = heads.q_position_scale.period,
                      .offset = heads.q_position_scale.offset},
          .queries_only = !layer.stores_kv()};
}

// Stores K and V of the step unless an earlier layer has done so, then computes attended =
// attention(q, cache).
absl::Status StoreAndAttend(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place,
                            kernels::ConstFloatPtr input) {
  const StepBuffers& b = *step.buffers;
  const AttentionSpec& heads = layer.heads;
  const QkvLayout layout(layer);
  const kernels::AnyKvView keys = kernels::KeyView(step.kv[place.group], place.slot);
  const kernels::AnyKvView values = kernels::ValueView(step.kv[place.group], place.slot);
  QUIRE_RETURN_IF_ERROR(ProjectAndStore(step, layer, weights, input,
                                        StoreParams(step, layer, weights, keys, values)));
  return kernels::PagedAttention(*step.backend,
                                 {.keys = &keys,
                                  .values = &values,
                                  .q = b.qkv,
                                  .out = b.attended,
                                  .row_offsets = b.row_offsets,
                                  .q_stride = layout.width,
                                  .out_stride = layout.q_width,
                                  .batch_size = step.batch_size,
                                  .num_heads = heads.num_heads,
                                  .scale = heads.scale,
                                  .plan = step.plan(place),
                                  .maps = step.maps_of(place),
                                  .layer = place.slot,
                                  .window = heads.window,
                                  .chunk = heads.chunk,
                                  .softcap = heads.softcap,
                                  .sinks = heads.has_sinks ? weights.sinks : nullptr});
}

// Computes attended *= sigmoid(gate), if the layer has a gate.
absl::Status ApplyOutputGate(const StepContext& step, const LayerSpec& layer) {
  const AttentionSpec& heads = layer.heads;
  if (!heads.output_gate) return absl::OkStatus();
  const StepBuffers& b = *step.buffers;
  const QkvLayout layout(layer);
  return kernels::GateNorm(*step.backend, {.x = b.attended,
                                           .gate = b.qkv + layout.gate_at,
                                           .y = b.attended,
                                           .x_stride = layout.q_width,
                                           .gate_stride = layout.width,
                                           .y_stride = layout.q_width,
                                           .num_rows = step.num_tokens,
                                           .groups = heads.num_heads,
                                           .columns = heads.head_size,
                                           .order = kernels::GateOrder::kSigmoid});
}

}  // namespace

absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place) {
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.attn_in, weights.attn_in));
  QUIRE_RETURN_IF_ERROR(StoreAndAttend(step, layer, weights, place, input));
  QUIRE_RETURN_IF_ERROR(ApplyOutputGate(step, layer));
  return AddProduct(step, AttentionOutput(layer, weights), weights.o, step.buffers->attended,
                    QkvLayout(layer).q_width);
}

}  // namespace quire::models
