#include "models/blocks/mla_block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/latent_store.h"
#include "kernels/linear/head_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/index_store.h"
#include "kernels/sparse/select_topk.h"
#include "kernels/sparse/sparse_attention.h"
#include "models/blocks/branch.h"

namespace quire::models {
namespace {

// Numbers of columns of a query. `query` counts the projected columns of a head, and `latent` the
// columns of a head in the latent space. A cached row also has `latent` columns.
struct Sizes {
  explicit Sizes(const MlaSpec& mla)
      : query(mla.nope_size + mla.rope_size),
        latent(mla.kv_lora_rank + mla.rope_size),
        queries(std::int64_t{mla.num_heads} * query),
        latents(std::int64_t{mla.num_heads} * latent) {}
  std::uint32_t query;
  std::uint32_t latent;
  std::int64_t queries;  // all heads
  std::int64_t latents;  // all heads
};

absl::Status Apply(const StepContext& step, const LinearWeights& weights, kernels::ConstFloatPtr x,
                   std::int64_t x_stride, kernels::FloatPtr y, std::int64_t y_stride) {
  return ApplyLinear(*step.backend, weights,
                     {.x = x,
                      .weight = nullptr,
                      .y = y,
                      .x_stride = x_stride,
                      .y_stride = y_stride,
                      .num_rows = step.num_tokens});
}

// Normalizes the first `columns` of each row in place. An eps of 0 means no norm.
absl::Status NormLatent(const StepContext& step, float eps, const float* weight,
                        kernels::FloatPtr x, std::int64_t stride, std::uint32_t columns) {
  if (eps == 0) return absl::OkStatus();
  return kernels::RmsNorm(*step.backend, {.x = x,
                                          .weight = weight,
                                          .y = x,
                                          .x_stride = stride,
                                          .y_stride = stride,
                                          .num_rows = step.num_tokens,
                                          .hidden = columns,
                                          .epsilon = eps});
}

// For the step's tokens, computes the queries (MlaBuffers::heads) and the cache rows [norm(c),
// k_pe] (MlaBuffers::rows), both before rope. `input` is the input of the branch.
absl::Status Project(const StepContext& step, const MlaSpec& mla, const MlaWeights& w,
                     kernels::ConstFloatPtr input, const Sizes& sizes) {
  const MlaBuffers& b = step.buffers->mla;
  kernels::ConstFloatPtr x = input;
  std::int64_t x_stride = step.hidden;
  if (mla.q_lora_rank > 0) {
    const std::int64_t rank = mla.q_lora_rank;
    QUIRE_RETURN_IF_ERROR(Apply(step, w.q_a, input, step.hidden, b.q_latent, rank));
    QUIRE_RETURN_IF_ERROR(
        NormLatent(step, mla.latent_eps, w.q_a_norm, b.q_latent, rank, mla.q_lora_rank));
    x = b.q_latent;
    x_stride = rank;
  }
  QUIRE_RETURN_IF_ERROR(Apply(step, w.q, x, x_stride, b.heads, sizes.queries));
  QUIRE_RETURN_IF_ERROR(Apply(step, w.kv_a, input, step.hidden, b.rows, sizes.latent));
  return NormLatent(step, mla.latent_eps, w.kv_a_norm, b.rows, sizes.latent, mla.kv_lora_rank);
}

// Input and output of ApplyHeads, and the distances between heads.
struct HeadRows {
  kernels::ConstFloatPtr x;
  kernels::FloatPtr y;
  std::int64_t x_head;
  std::int64_t y_head;
};

// Computes y[h] = W_h x[h] for all heads, in launches of kMaxHeadsPerLaunch heads.
absl::Status ApplyHeads(const StepContext& step, const std::vector<LinearWeights>& weights,
                        HeadRows rows) {
  const auto num_heads = static_cast<std::int64_t>(weights.size());
  const std::int64_t x_stride = num_heads * rows.x_head;
  const std::int64_t y_stride = num_heads * rows.y_head;
  std::array<const kernels::PackedLinear*, kernels::kMaxHeadsPerLaunch> matrices;
  for (std::size_t first = 0; first < weights.size(); first += matrices.size()) {
    const std::size_t count = std::min(matrices.size(), weights.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      QUIRE_DCHECK(weights[first + i].matrices.size() == 1 && weights[first + i].bias == nullptr);
      matrices[i] = &weights[first + i].matrices.front();
    }
    const auto at = static_cast<std::int64_t>(first);
    QUIRE_RETURN_IF_ERROR(kernels::HeadLinear(*step.backend, {.weights = {matrices.data(), count},
                                                              .x = rows.x + at * rows.x_head,
                                                              .y = rows.y + at * rows.y_head,
                                                              .x_stride = x_stride,
                                                              .y_stride = y_stride,
                                                              .x_head_stride = rows.x_head,
                                                              .y_head_stride = rows.y_head,
                                                              .num_rows = step.num_tokens}));
  }
  return absl::OkStatus();
}

kernels::RopeStyle RopeStyleOf(RopeStyle style) {
  return style == RopeStyle::kHalf ? kernels::RopeStyle::kHalf : kernels::RopeStyle::kInterleaved;
}

// Writes the rotated columns of the queries to MlaBuffers::queries, and the step's rows to their
// pages.
absl::Status StoreRows(const StepContext& step, const MlaSpec& mla,
                       const kernels::AnyKvView& rows) {
  const StepBuffers& b = *step.buffers;
  const RopeAngles angles = mla.rope < 0 ? RopeAngles{.cosines = nullptr, .sines = nullptr}
                                         : step.angles[static_cast<std::size_t>(mla.rope)];
  return kernels::LatentStore(*step.backend, {.rows = &rows,
                                              .heads = b.mla.heads,
                                              .latents = b.mla.rows,
                                              .queries = b.mla.queries,
                                              .cosines = angles.cosines,
                                              .sines = angles.sines,
                                              .row_offsets = b.row_offsets,
                                              .token_rows = b.token_rows,
                                              .positions = b.positions,
                                              .batch_size = step.batch_size,
                                              .num_rows = step.num_tokens,
                                              .num_heads = mla.num_heads,
                                              .nope_size = mla.nope_size,
                                              .rope_size = mla.rope_size,
                                              .style = RopeStyleOf(mla.rope_style)});
}

// Computes the queries, keys and weights of the indexer and writes the keys to their pages
// (`rows`). REQUIRES: Project computed the query latents.
absl::Status StoreIndex(const StepContext& step, const MlaSpec& mla, const MlaWeights& w,
                        kernels::ConstFloatPtr input, const kernels::AnyKvView& rows) {
  const IndexSpec& index = *mla.index;
  const IndexBuffers& b = step.buffers->index;
  QUIRE_RETURN_IF_ERROR(Apply(step, w.index_q, step.buffers->mla.q_latent, mla.q_lora_rank,
                              b.queries, std::int64_t{index.heads} * index.size));
  QUIRE_RETURN_IF_ERROR(Apply(step, w.index_k, input, step.hidden, b.keys, index.size));
  QUIRE_RETURN_IF_ERROR(Apply(step, w.index_weights, input, step.hidden, b.weights, index.heads));
  const RopeAngles& angles = step.angles[static_cast<std::size_t>(mla.rope)];
  return kernels::IndexStore(*step.backend, {.rows = &rows,
                                             .queries = b.queries,
                                             .keys = b.keys,
                                             .norm_weight = w.index_k_norm,
                                             .norm_bias = w.index_k_norm_bias,
                                             .cosines = angles.cosines,
                                             .sines = angles.sines,
                                             .row_offsets = step.buffers->row_offsets,
                                             .token_rows = step.buffers->token_rows,
                                             .positions = step.buffers->positions,
                                             .batch_size = step.batch_size,
                                             .num_rows = step.num_tokens,
                                             .num_heads = index.heads,
                                             .rope_size = mla.rope_size,
                                             .style = RopeStyleOf(index.rope_style),
                                             .epsilon = index.norm_eps});
}

// True if some row of the step sees more keys than it may select. Always true on a GPU, because the
// host does not know the positions there, and dense attention would give other bits.
bool NeedsSelection(const StepContext& step, const IndexSpec& index) {
  if (step.backend->cuda() != nullptr) return true;
  const std::int32_t* const positions = step.buffers->positions;
  return std::any_of(positions, positions + step.num_tokens, [&](std::int32_t position) {
    return static_cast<std::uint32_t>(position) >= index.topk;
  });
}

// Selects the keys of all tokens of the step. Writes them to IndexBuffers::selected as row indices
// into the view `latents`.
absl::Status SelectKeys(const StepContext& step, const IndexSpec& index,
                        const kernels::AnyKvView& rows, const kernels::AnyKvView& latents) {
  const IndexBuffers& b = step.buffers->index;
  const std::int32_t* const token_rows = step.buffers->token_rows;
  for (std::uint32_t begin = 0; begin < step.num_tokens; begin += kIndexRows) {
    const std::uint32_t end = std::min(step.num_tokens, begin + kIndexRows);
    QUIRE_RETURN_IF_ERROR(kernels::IndexScore(
        *step.backend,
        {.keys = &rows,
         .q = b.queries,
         .weights = b.weights,
         .scores = b.scores,
         .row_offsets = step.buffers->row_offsets,
         .score_stride = b.score_stride,
         .batch_size = step.batch_size,
         .row_begin = begin,
         .row_end = end,
         .num_heads = index.heads,
         .scale = 1 / std::sqrt(static_cast<float>(index.heads) * static_cast<float>(index.size)),
         .token_rows = step.buffers->token_rows,
         .positions = step.buffers->positions}));
    QUIRE_RETURN_IF_ERROR(kernels::SelectTopK(
        *step.backend, {.scores = b.scores,
                        .positions = step.buffers->positions + begin,
                        .selected = b.selected + std::size_t{begin} * b.max_selected,
                        .score_stride = b.score_stride,
                        .num_rows = end - begin,
                        .topk = index.topk,
                        .max_selected = b.max_selected,
                        .token_rows = token_rows == nullptr ? nullptr : token_rows + begin}));
  }
  return kernels::MapSelectedRows(*step.backend, {.rows = &latents,
                                                  .selected = b.selected,
                                                  .last_selected = b.last_selected,
                                                  .offsets = b.offsets,
                                                  .row_offsets = step.buffers->row_offsets,
                                                  .batch_size = step.batch_size,
                                                  .num_rows = step.num_tokens,
                                                  .max_selected = b.max_selected,
                                                  .token_rows = token_rows,
                                                  .live_rows = b.live_rows});
}

// Computes attended = attention(queries, selected rows of the cache).
absl::Status AttendSelected(const StepContext& step, const MlaSpec& mla, const Sizes& sizes,
                            const LayerPlace& place, const kernels::AnyKvView& rows) {
  const StepBuffers& b = *step.buffers;
  return kernels::SparseAttention(*step.backend, {.rows = &rows,
                                                  .q = b.mla.queries,
                                                  .out = b.mla.attended,
                                                  .selected = b.index.selected,
                                                  .last_selected = b.index.last_selected,
                                                  .offsets = b.index.offsets,
                                                  .q_stride = sizes.latents,
                                                  .out_stride = sizes.latents,
                                                  .num_rows = step.num_tokens,
                                                  .max_selected = b.index.max_selected,
                                                  .num_heads = mla.num_heads,
                                                  .scale = mla.scale,
                                                  .value_columns = mla.kv_lora_rank,
                                                  .live_rows = b.index.live_rows,
                                                  .plan = step.plan(place)});
}

// Computes attended = attention(queries, cache).
absl::Status AttendAll(const StepContext& step, const MlaSpec& mla, const Sizes& sizes,
                       const LayerPlace& place, const kernels::AnyKvView& rows) {
  const StepBuffers& b = *step.buffers;
  return kernels::PagedAttention(*step.backend, {.keys = &rows,
                                                 .values = &rows,
                                                 .q = b.mla.queries,
                                                 .out = b.mla.attended,
                                                 .row_offsets = b.row_offsets,
                                                 .q_stride = sizes.latents,
                                                 .out_stride = sizes.latents,
                                                 .batch_size = step.batch_size,
                                                 .num_heads = mla.num_heads,
                                                 .scale = mla.scale,
                                                 .plan = step.plan(place),
                                                 .maps = step.maps_of(place),
                                                 .layer = place.slot,
                                                 .value_columns = mla.kv_lora_rank});
}

}  // namespace

absl::Status MlaBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                      const LayerPlace& place) {
  const MlaSpec& mla = layer.mla;
  const Sizes sizes(mla);
  const MlaBuffers& b = step.buffers->mla;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.attn_in, weights.attn_in));
  QUIRE_RETURN_IF_ERROR(Project(step, mla, weights.mla, input, sizes));
  // Computes the columns without rope of every latent query: W_h^T q_nope, where W_h is the key
  // part of kv_b for head h.
  QUIRE_RETURN_IF_ERROR(
      ApplyHeads(step, weights.mla.to_latent,
                 {.x = b.heads, .y = b.queries, .x_head = sizes.query, .y_head = sizes.latent}));
  const kernels::AnyKvView rows = kernels::LatentView(step.kv[place.group], place.slot);
  QUIRE_RETURN_IF_ERROR(StoreRows(step, mla, rows));
  const bool is_sparse = mla.index && NeedsSelection(step, *mla.index);
  if (mla.has_indexer()) {
    const kernels::AnyKvView index = kernels::LatentView(*step.index, place.index_slot);
    QUIRE_RETURN_IF_ERROR(StoreIndex(step, mla, weights.mla, input, index));
    if (is_sparse) QUIRE_RETURN_IF_ERROR(SelectKeys(step, *mla.index, index, rows));
  }
  QUIRE_RETURN_IF_ERROR(is_sparse ? AttendSelected(step, mla, sizes, place, rows)
                                  : AttendAll(step, mla, sizes, place, rows));
  const std::int64_t values = std::int64_t{mla.num_heads} * mla.v_size;
  QUIRE_RETURN_IF_ERROR(
      ApplyHeads(step, weights.mla.from_latent,
                 {.x = b.attended, .y = b.values, .x_head = sizes.latent, .y_head = mla.v_size}));
  return AddProduct(step, AttentionOutput(layer, weights), weights.mla.o, b.values, values);
}

}  // namespace quire::models
