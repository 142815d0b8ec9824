#include "models/blocks/step_buffers.h"

#include <algorithm>
#include <cstddef>

#include "base/status.h"
#include "kernels/elementwise/step_inputs.h"
#include "kernels/sparse/index_score.h"
#include "models/blocks/tail_rows.h"

namespace quire::models {
namespace {

// Allocates aligned arrays from a memory block, in order. Without a block, only counts bytes.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(std::int64_t count) {
    used_ = RoundUp(used_);
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += count * static_cast<std::int64_t>(sizeof(T));
    return piece;
  }
  std::int64_t used() const { return used_; }
  static std::int64_t RoundUp(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::byte* base_;
  std::int64_t used_ = 0;
};

// The widest rows of all layers, in elements.
struct Widths {
  std::int64_t qkv = 0;
  std::int64_t attended = 0;
  std::int64_t gate_up = 0;
  std::int64_t hidden = 0;
  // MLA; 0: none.
  std::int64_t q_latent = 0;  // 0: no layer has a query latent
  std::int64_t queries = 0;
  std::int64_t latent = 0;
  std::int64_t latents = 0;
  std::int64_t values = 0;
  // Recurrent layers and short convolutions; 0: none.
  std::int64_t recurrent_in = 0;
  std::int64_t decays = 0;
  std::int64_t rates = 0;
  std::int64_t recurrent_out = 0;
  std::int64_t recurrent_rounded = 0;  // the widest input of a product
  // Indexers; 0: none.
  std::int64_t index_queries = 0;
  std::int64_t index_size = 0;
  std::int64_t index_heads = 0;
  std::int64_t index_topk = 0;
  // MoE; 0: none.
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t expert_inner = 0;  // gate and up of an expert
  std::int64_t shared_inner = 0;  // gate and up of a shared expert
  std::int64_t expert_latent = 0;
  std::int64_t expert_input = 0;     // hidden or latent columns
  bool has_weighted_inputs = false;  // experts read weighted inputs
  // All layers.
  std::int64_t angles = 0;        // all rope tables together
  std::int64_t layer_inputs = 0;  // all layers together; 0: none
  std::int64_t dense_out = 0;     // 0: no dense MLP beside experts
  bool has_tail = false;          // there are tail layers (tail_rows.h)
};

void AddRecurrent(const RecurrentSpec& recurrent, Widths* widths) {
  widths->recurrent_in = std::max(widths->recurrent_in, std::int64_t{recurrent.row_columns()});
  widths->decays = std::max(widths->decays, std::int64_t{recurrent.decay_columns()});
  widths->rates = std::max(widths->rates, std::int64_t{recurrent.heads});
  widths->recurrent_out = std::max(widths->recurrent_out, std::int64_t{recurrent.value_columns()});
  widths->recurrent_rounded =
      std::max({widths->recurrent_rounded, std::int64_t{recurrent.value_columns()},
                std::int64_t{recurrent.gate_rank}, std::int64_t{recurrent.decay_rank}});
}

Widths WidthsOf(const ModelSpec& spec) {
  Widths widths;
  widths.hidden = spec.hidden;
  widths.has_tail = FirstTailLayer(spec) < spec.layers.size();
  widths.layer_inputs =
      std::int64_t{spec.layer_inputs.size} * static_cast<std::int64_t>(spec.layers.size());
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& heads = layer.heads;
    const std::int64_t all_heads =
        std::int64_t{heads.num_heads} * (layer.heads.output_gate ? 2 : 1) + 2 * heads.num_kv_heads;
    widths.qkv = std::max(widths.qkv, all_heads * heads.head_size);
    widths.attended = std::max(widths.attended, std::int64_t{heads.num_heads} * heads.head_size);
    widths.gate_up = std::max(widths.gate_up, layer.dense.inner_columns());
    if (layer.attention == AttentionKind::kMla) {
      const MlaSpec& mla = layer.mla;
      const std::int64_t num_heads = mla.num_heads;
      const std::int64_t latent = std::int64_t{mla.kv_lora_rank} + mla.rope_size;
      widths.q_latent = std::max(widths.q_latent, std::int64_t{mla.q_lora_rank});
      widths.queries = std::max(widths.queries, num_heads * (mla.nope_size + mla.rope_size));
      widths.latent = std::max(widths.latent, latent);
      widths.latents = std::max(widths.latents, num_heads * latent);
      widths.values = std::max(widths.values, num_heads * mla.v_size);
    }
    if (layer.attention == AttentionKind::kRecurrent) AddRecurrent(layer.recurrent, &widths);
    if (layer.mla.has_indexer()) {
      const IndexSpec& index = *layer.mla.index;
      const std::int64_t queries = std::int64_t{index.heads} * index.size;
      widths.index_queries = std::max(widths.index_queries, queries);
      widths.index_size = std::max(widths.index_size, std::int64_t{index.size});
      widths.index_heads = std::max(widths.index_heads, std::int64_t{index.heads});
      widths.index_topk = std::max(widths.index_topk, std::int64_t{index.topk});
    }
    if (layer.attention == AttentionKind::kShortConv) {
      widths.recurrent_in = std::max(widths.recurrent_in, 3 * widths.hidden);
      widths.recurrent_rounded = std::max(widths.recurrent_rounded, widths.hidden);
    }
    if (layer.mlp == MlpKind::kDenseAndMoe) widths.dense_out = spec.hidden;
    if (!layer.has_moe()) continue;
    widths.experts = std::max(widths.experts, std::int64_t{layer.moe.num_experts});
    widths.top_k = std::max(widths.top_k, std::int64_t{layer.moe.top_k});
    widths.expert_inner = std::max(widths.expert_inner, layer.moe.expert.inner_columns());
    const std::int64_t latent = layer.moe.latent;
    widths.expert_latent = std::max(widths.expert_latent, latent);
    widths.expert_input = std::max(widths.expert_input, latent != 0 ? latent : widths.hidden);
    widths.has_weighted_inputs |= layer.moe.weight_on_input;
    if (!layer.moe.shared) continue;
    widths.shared_inner = std::max(widths.shared_inner, layer.moe.shared->inner_columns());
  }
  for (const RopeTable& table : spec.rope_tables) {
    widths.angles += static_cast<std::int64_t>(table.inv_freq.size());
  }
  return widths;
}

kernels::FloatPtr TakeFloats(Arena& arena, DType dtype, std::int64_t count) {
  return {arena.Take<std::byte>(count * DTypeSize(dtype)), dtype};
}

void AllocateMla(Arena& arena, const Widths& widths, const StepLimits& limits, MlaBuffers* mla) {
  if (widths.latent == 0) return;
  const auto take = [&](std::int64_t width) {
    return TakeFloats(arena, limits.activation, limits.max_step_tokens * width);
  };
  mla->q_latent = take(widths.q_latent);
  mla->heads = take(widths.queries);
  mla->rows = take(widths.latent);
  mla->queries = take(widths.latents);
  mla->attended = take(widths.latents);
  mla->values = take(widths.values);
}

void AllocateRecurrent(Arena& arena, const Widths& widths, const StepLimits& limits,
                       RecurrentBuffers* recurrent) {
  if (widths.recurrent_in == 0) return;
  const std::int64_t tokens = limits.max_step_tokens;
  recurrent->in = arena.Take<float>(tokens * widths.recurrent_in);
  recurrent->decay = arena.Take<float>(tokens * widths.decays);
  recurrent->rate = arena.Take<float>(tokens * widths.rates);
  recurrent->out = arena.Take<float>(tokens * widths.recurrent_out);
  if (limits.activation == DType::kF32) return;
  recurrent->rounded = TakeFloats(arena, limits.activation, tokens * widths.recurrent_rounded);
}

// Allocates the buffers that are used only while a layer computes its selection. They follow the
// buffers of MLA.
void AllocateIndex(Arena& arena, const Widths& widths, const StepLimits& limits,
                   IndexBuffers* index) {
  if (widths.index_topk == 0) return;
  index->queries = arena.Take<float>(limits.max_step_tokens * widths.index_queries);
  index->keys = arena.Take<float>(limits.max_step_tokens * widths.index_size);
  index->weights = arena.Take<float>(limits.max_step_tokens * widths.index_heads);
  index->scores = arena.Take<float>(kIndexRows * index->score_stride);
}

// Allocates the arrays of IndexBuffers that outlive a layer. Sets score_stride and max_selected.
void AllocateSelected(Arena& arena, const Widths& widths, const StepLimits& limits,
                      std::uint32_t context, IndexBuffers* index) {
  if (widths.index_topk == 0) return;
  const std::int64_t tokens = limits.max_step_tokens;
  index->score_stride = kernels::ScoreStride(context);
  index->max_selected =
      static_cast<std::uint32_t>(std::min(widths.index_topk, std::int64_t{context}));
  index->selected = arena.Take<std::int32_t>(tokens * index->max_selected);
  index->last_selected = arena.Take<std::uint32_t>(tokens);
  index->offsets = arena.Take<std::uint32_t>(tokens + 1);
  if (limits.memory == MemoryKind::kHost) return;
  index->live_rows = arena.Take<std::uint32_t>(1 + tokens);
}

void AllocateMoe(Arena& arena, const Widths& widths, const StepLimits& limits, MoeBuffers* moe) {
  const std::int64_t tokens = limits.max_step_tokens;
  if (widths.experts == 0) return;
  moe->router_logits = arena.Take<float>(tokens * widths.experts);
  moe->chosen = arena.Take<std::uint32_t>(tokens * widths.top_k);
  moe->chosen_weights = arena.Take<float>(tokens * widths.top_k);
  moe->offsets = arena.Take<std::uint32_t>(widths.experts + 1);
  moe->rows = arena.Take<std::uint32_t>(tokens * widths.top_k);
  moe->row_weights = arena.Take<float>(tokens * widths.top_k);
  // GPUs compute all experts at once.
  const bool all = limits.memory == MemoryKind::kDevice;
  const std::int64_t rows = all ? tokens * widths.top_k : tokens;
  if (all) moe->places = arena.Take<std::uint32_t>(tokens * widths.top_k);
  if (!all || widths.has_weighted_inputs) {
    moe->inputs = TakeFloats(arena, limits.activation, rows * widths.expert_input);
  }
  // The shared expert computes every token once.
  moe->gate_up = TakeFloats(arena, limits.activation,
                            std::max(rows * widths.expert_inner, tokens * widths.shared_inner));
  moe->outputs = arena.Take<float>(rows * std::max(widths.expert_input, widths.hidden));
  moe->sum = arena.Take<float>(tokens * widths.hidden);
  if (widths.expert_latent == 0) return;
  moe->latent_in = TakeFloats(arena, limits.activation, tokens * widths.expert_latent);
  moe->latent_sum = arena.Take<float>(tokens * widths.expert_latent);
}

// Allocates the memory that attention (qkv and attended, mla or recurrent) and then the MLP
// (gate_up or moe) use.
void AllocateLayer(Arena& arena, const Widths& widths, const StepLimits& limits,
                   StepBuffers* buffers) {
  const std::int64_t tokens = limits.max_step_tokens;
  const std::int64_t element = DTypeSize(limits.activation);
  const std::int64_t attended_at = Arena::RoundUp(tokens * widths.qkv * element);
  const std::int64_t attention = attended_at + tokens * widths.attended * element;
  // Lays out at `memory` the buffers of each kind of layer, and returns the bytes of the largest
  // kind.
  const auto lay_out = [&](std::byte* memory) {
    Arena moe(memory), mla(memory), recurrent(memory);
    AllocateMoe(moe, widths, limits, &buffers->moe);
    AllocateMla(mla, widths, limits, &buffers->mla);
    AllocateIndex(mla, widths, limits, &buffers->index);
    AllocateRecurrent(recurrent, widths, limits, &buffers->recurrent);
    return std::max({moe.used(), mla.used(), recurrent.used()});
  };
  const std::int64_t context = tokens * widths.layer_inputs * std::int64_t{sizeof(float)};
  const bool has_tail = limits.memory == MemoryKind::kDevice && widths.has_tail;
  const std::int64_t tail = has_tail ? tokens * widths.hidden * std::int64_t{sizeof(float)} : 0;
  std::byte* const base = arena.Take<std::byte>(
      std::max({attention, tokens * widths.gate_up * element, context, tail, lay_out(nullptr)}));
  if (base == nullptr) return;
  lay_out(base);
  buffers->qkv = {base, limits.activation};
  buffers->attended = {base + attended_at, limits.activation};
  buffers->gate_up = buffers->qkv;
  if (context > 0) buffers->layer_context = reinterpret_cast<float*>(base);
  if (has_tail) buffers->tail_values = reinterpret_cast<float*>(base);
}

void AllocateDevice(Arena& arena, const Widths& widths, const StepLimits& limits,
                    StepBuffers* buffers) {
  const std::int64_t rows = limits.max_rows;
  buffers->token_rows = arena.Take<std::int32_t>(limits.max_step_tokens);
  buffers->cache_lengths = arena.Take<std::uint32_t>(rows);
  buffers->prefill_tokens = arena.Take<std::uint32_t>(rows);
  buffers->live_rows = arena.Take<std::uint32_t>(1 + rows);
  buffers->lookup_table =
      arena.Take<std::uint32_t>(limits.num_groups * rows * limits.lookup_stride);
  if (limits.num_state_slots > 0) {
    buffers->states = arena.Take<std::uint32_t>(kernels::kStateArrays * rows);
  }
  buffers->inv_freq = arena.Take<float>(widths.angles);
}

std::int64_t AllocateArrays(std::byte* base, const ModelSpec& spec, const StepLimits& limits,
                            StepBuffers* buffers) {
  const std::int64_t tokens = limits.max_step_tokens;
  const std::int64_t head_rows = limits.head_rows;
  const Widths widths = WidthsOf(spec);
  Arena arena(base);
  buffers->tokens = arena.Take<std::int32_t>(tokens);
  buffers->positions = arena.Take<std::int32_t>(tokens);
  buffers->row_offsets = arena.Take<std::uint32_t>(std::int64_t{limits.max_rows} + 1);
  buffers->cosines = arena.Take<float>(tokens * widths.angles);
  buffers->sines = arena.Take<float>(tokens * widths.angles);
  buffers->x = arena.Take<float>(tokens * spec.hidden);
  buffers->normed = TakeFloats(arena, limits.activation, tokens * spec.hidden);
  if (limits.activation == DType::kF32) {
    buffers->branch = buffers->normed.f32();
  } else if (limits.is_part ||
             std::any_of(spec.layers.begin(), spec.layers.end(), NeedsBranchBuffer)) {
    buffers->branch = arena.Take<float>(tokens * spec.hidden);
  }
  const std::uint32_t context =
      limits.max_context_tokens == 0 ? spec.max_position : limits.max_context_tokens;
  AllocateSelected(arena, widths, limits, context, &buffers->index);
  if (widths.layer_inputs > 0) {
    buffers->layer_inputs = arena.Take<float>(tokens * widths.layer_inputs);
  }
  if (widths.dense_out > 0) buffers->dense_out = arena.Take<float>(tokens * widths.dense_out);
  AllocateLayer(arena, widths, limits, buffers);
  buffers->head_tokens = arena.Take<std::uint32_t>(tokens);
  buffers->head_in = TakeFloats(arena, limits.activation, head_rows * spec.hidden);
  buffers->logits = arena.Take<float>(head_rows * spec.vocab_size);
  if (limits.memory == MemoryKind::kHost) {
    if (FirstTailLayer(spec) < spec.layers.size()) {
      buffers->tail_offsets = arena.Take<std::uint32_t>(std::int64_t{limits.max_rows} + 1);
      buffers->tail_lengths = arena.Take<std::uint32_t>(limits.max_rows);
    }
    const std::int64_t logprobs = limits.max_logprobs;
    buffers->sample_top = arena.Take<kernels::TopLogprob>(limits.max_step_samples * logprobs);
    buffers->prompt_logprob_top = arena.Take<kernels::TopLogprob>(tokens * logprobs);
  } else {
    AllocateDevice(arena, widths, limits, buffers);
  }
  return Arena::RoundUp(arena.used());
}

}  // namespace

bool NeedsBranchBuffer(const LayerSpec& layer) {
  return layer.attn_out.kind != NormKind::kNone || layer.mlp_out.kind != NormKind::kNone ||
         layer.residual_scale != 1 || layer.output_scale != 1 || layer.has_output_scale ||
         layer.input.size > 0;
}

std::int64_t StepBuffers::BytesFor(const ModelSpec& spec, const StepLimits& limits) {
  StepBuffers counted;
  return AllocateArrays(nullptr, spec, limits, &counted);
}

absl::StatusOr<StepBuffers> StepBuffers::Allocate(const ModelSpec& spec, const StepLimits& limits) {
  StepBuffers buffers;
  QUIRE_ASSIGN_OR_RETURN(buffers.memory,
                         DeviceBuffer::Allocate(limits.memory, BytesFor(spec, limits)));
  AllocateArrays(static_cast<std::byte*>(buffers.memory.data()), spec, limits, &buffers);
  return buffers;
}

}  // namespace quire::models
