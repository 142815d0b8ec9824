#include "models/blocks/mla_block.h"

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/head_columns.h"
#include "kernels/kv_dispatch.h"
#include "kernels/kv_store.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "models/blocks/branch.h"

namespace quire::models {
namespace {

// Columns of a head: as projected, and in the latent space, where a cached row has as many.
struct Sizes {
  explicit Sizes(const MlaSpec& mla)
      : query(mla.nope_size + mla.rope_size),
        latent(mla.kv_lora_rank + mla.rope_size),
        queries(std::int64_t{mla.num_heads} * query),
        latents(std::int64_t{mla.num_heads} * latent) {}
  std::uint32_t query;
  std::uint32_t latent;
  std::int64_t queries;  // of all heads
  std::int64_t latents;
};

absl::Status Apply(const StepContext& step, const LinearWeights& weights, kernels::ConstFloatPtr x,
                   std::int64_t x_stride, float* y, std::int64_t y_stride) {
  return ApplyLinear(*step.backend, weights,
                     {.x = x,
                      .weight = nullptr,
                      .y = y,
                      .x_stride = x_stride,
                      .y_stride = y_stride,
                      .num_rows = step.num_tokens});
}

// The first `columns` of each row, normed in place; an eps of 0 means no norm.
absl::Status NormLatent(const StepContext& step, float eps, const float* weight, float* x,
                        std::int64_t stride, std::uint32_t columns) {
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

// heads = queries of all heads, rows = [norm(c), k_pe] of the step's tokens; nothing is rotated.
absl::Status Project(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                     const Sizes& sizes) {
  const MlaSpec& mla = layer.mla;
  const MlaWeights& w = weights.mla;
  const MlaBuffers& b = step.buffers->mla;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.attn_in, weights.attn_in));
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

// Rotates the last columns of every query head and of every row.
absl::Status Rotate(const StepContext& step, const MlaSpec& mla, const Sizes& sizes) {
  const RopeAngles& angles = step.angles[static_cast<std::size_t>(mla.rope)];
  const MlaBuffers& b = step.buffers->mla;
  const struct {
    float* x;
    std::uint32_t num_heads, head_size, rotary_first;
  } parts[] = {{b.heads, mla.num_heads, sizes.query, mla.nope_size},
               {b.rows, 1, sizes.latent, mla.kv_lora_rank}};
  for (const auto& part : parts) {
    QUIRE_RETURN_IF_ERROR(kernels::Rope(
        *step.backend,
        {.x = part.x,
         .cosines = angles.cosines,
         .sines = angles.sines,
         .x_stride = std::int64_t{part.num_heads} * part.head_size,
         .num_rows = step.num_tokens,
         .num_heads = part.num_heads,
         .head_size = part.head_size,
         .rotary_size = mla.rope_size,
         .rotary_first = part.rotary_first,
         .style = mla.rope_style == RopeStyle::kHalf ? kernels::RopeStyle::kHalf
                                                     : kernels::RopeStyle::kInterleaved}));
  }
  return absl::OkStatus();
}

// queries = [UK_h^T q_nope, q_rope] of every head.
absl::Status IntoLatent(const StepContext& step, const MlaSpec& mla, const MlaWeights& weights,
                        const Sizes& sizes) {
  const MlaBuffers& b = step.buffers->mla;
  for (std::uint32_t h = 0; h < mla.num_heads; ++h) {
    QUIRE_RETURN_IF_ERROR(Apply(step, weights.to_latent[h], b.heads + h * sizes.query,
                                sizes.queries, b.queries + h * sizes.latent, sizes.latents));
  }
  return kernels::CopyHeadColumns(*step.backend, {.x = b.heads,
                                                  .y = b.queries,
                                                  .x_stride = sizes.queries,
                                                  .y_stride = sizes.latents,
                                                  .num_rows = step.num_tokens,
                                                  .num_heads = mla.num_heads,
                                                  .x_head_size = sizes.query,
                                                  .y_head_size = sizes.latent,
                                                  .x_first = mla.nope_size,
                                                  .y_first = mla.kv_lora_rank,
                                                  .columns = mla.rope_size});
}

absl::Status StoreAndAttend(const StepContext& step, const MlaSpec& mla, const Sizes& sizes,
                            const LayerPlace& place) {
  const MlaBuffers& b = step.buffers->mla;
  const kernels::AnyKvView rows = kernels::LatentView(step.kv[place.group], place.slot);
  QUIRE_RETURN_IF_ERROR(kernels::KvStore(*step.backend, {.keys = &rows,
                                                         .values = &rows,
                                                         .k = b.rows,
                                                         .v = b.rows,
                                                         .row_offsets = step.buffers->row_offsets,
                                                         .k_stride = sizes.latent,
                                                         .v_stride = sizes.latent,
                                                         .batch_size = step.batch_size}));
  return kernels::PagedAttention(*step.backend, {.keys = &rows,
                                                 .values = &rows,
                                                 .q = b.queries,
                                                 .out = b.found,
                                                 .row_offsets = step.buffers->row_offsets,
                                                 .q_stride = sizes.latents,
                                                 .out_stride = sizes.latents,
                                                 .batch_size = step.batch_size,
                                                 .num_heads = mla.num_heads,
                                                 .scale = mla.scale});
}

}  // namespace

absl::Status MlaBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                      const LayerPlace& place) {
  const MlaSpec& mla = layer.mla;
  const Sizes sizes(mla);
  const MlaBuffers& b = step.buffers->mla;
  QUIRE_RETURN_IF_ERROR(Project(step, layer, weights, sizes));
  QUIRE_RETURN_IF_ERROR(Rotate(step, mla, sizes));
  QUIRE_RETURN_IF_ERROR(IntoLatent(step, mla, weights.mla, sizes));
  QUIRE_RETURN_IF_ERROR(StoreAndAttend(step, mla, sizes, place));
  const std::int64_t values = std::int64_t{mla.num_heads} * mla.v_size;
  for (std::uint32_t h = 0; h < mla.num_heads; ++h) {
    QUIRE_RETURN_IF_ERROR(Apply(step, weights.mla.from_latent[h], b.found + h * sizes.latent,
                                sizes.latents, b.values + h * mla.v_size, values));
  }
  return JoinProduct(step, AttentionOutput(layer, weights), weights.o, b.values, values);
}

}  // namespace quire::models
