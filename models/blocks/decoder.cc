#include "models/blocks/decoder.h"

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/softcap.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "models/blocks/attention_block.h"
#include "models/blocks/input_block.h"
#include "models/blocks/mla_block.h"
#include "models/blocks/mlp_block.h"
#include "models/blocks/moe_block.h"
#include "models/blocks/recurrent_block.h"
#include "models/blocks/short_conv_block.h"
#include "models/blocks/step_context.h"
#include "models/config/tensor_table.h"

namespace quire::models {
namespace {

// Families have at most one table for full and one for windowed layers.
constexpr std::size_t kMaxRopeTables = 4;
using AngleTables = std::array<RopeAngles, kMaxRopeTables>;

// Computes the angles of the first `num_tokens` positions of the buffers.
absl::Status ComputeAngles(const ModelSpec& spec, const DecoderStep& step, std::uint32_t num_tokens,
                           AngleTables* angles) {
  QUIRE_CHECK(spec.rope_tables.size() <= kMaxRopeTables);
  float* cosines = step.buffers->cosines;
  float* sines = step.buffers->sines;
  const float* device_freq = step.buffers->inv_freq;
  for (std::size_t i = 0; i < spec.rope_tables.size(); ++i) {
    const RopeTable& table = spec.rope_tables[i];
    QUIRE_RETURN_IF_ERROR(kernels::RopeAngles(
        *step.backend, {.positions = step.buffers->positions,
                        .inv_freq = device_freq ? device_freq : table.inv_freq.data(),
                        .cosines = cosines,
                        .sines = sines,
                        .num_rows = num_tokens,
                        .num_pairs = static_cast<std::uint32_t>(table.inv_freq.size()),
                        .attention_factor = table.attention_factor}));
    (*angles)[i] = {cosines, sines};
    cosines += num_tokens * table.inv_freq.size();
    sines += num_tokens * table.inv_freq.size();
    if (device_freq != nullptr) device_freq += table.inv_freq.size();
  }
  return absl::OkStatus();
}

// Writes x to hidden_out[index], with the tokens in the order of StepBatch.
absl::Status WriteHidden(const ModelSpec& spec, const DecoderStep& step, kernels::ConstFloatPtr x,
                         std::size_t index) {
  if (step.hidden_out == nullptr) return absl::OkStatus();
  const std::size_t elements = std::size_t{step.num_tokens} * spec.hidden;
  std::vector<std::byte> copy;
  if (step.backend->cuda() != nullptr) {
    const Stream& stream = *step.backend->cuda()->stream;
    copy.resize(elements * static_cast<std::size_t>(DTypeSize(x.dtype())));
    QUIRE_RETURN_IF_ERROR(
        stream.Copy(copy.data(), x.data(), static_cast<std::int64_t>(copy.size())));
    QUIRE_RETURN_IF_ERROR(stream.Synchronize());
    x = {copy.data(), x.dtype()};
  }
  float* out = step.hidden_out + index * elements;
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t to = std::size_t{step.batch_index[i / spec.hidden]} * spec.hidden;
    out[to + i % spec.hidden] = x.is_f32() ? x.f32()[i] : x.as<BF16>()[i].ToFloat();
  }
  return absl::OkStatus();
}

absl::Status RunBlock(BlockKind kind, const StepContext& step, const LayerSpec& layer,
                      const LayerWeights& weights, const LayerPlace& place) {
  switch (kind) {
    case BlockKind::kAttention:
      return AttentionBlock(step, layer, weights, place);
    case BlockKind::kMla:
      return MlaBlock(step, layer, weights, place);
    case BlockKind::kRecurrent:
      return RecurrentBlock(step, layer, weights, place);
    case BlockKind::kShortConv:
      return ShortConvBlock(step, layer, weights, place);
    case BlockKind::kMlp:
      return MlpBlock(step, layer, weights);
    case BlockKind::kMoe:
      return MoeBlock(step, layer, weights);
    default:
      QUIRE_CHECK(false);
      return absl::OkStatus();
  }
}

absl::Status RunLayer(const StepContext& context, const ModelSpec& spec, const Weights& weights,
                      std::size_t index, const LayerPlace& place) {
  const LayerSpec& layer = spec.layers[index];
  for (const BlockKind kind : BlocksOf(layer)) {
    QUIRE_RETURN_IF_ERROR(RunBlock(kind, context, layer, weights.layers()[index], place));
  }
  if (layer.input.size == 0) return absl::OkStatus();
  return InputBlock(context, spec, weights.layers()[index], index);
}

// Computes the last layers, from `first` on, for the tokens of the tail alone, on a GPU.
absl::Status RunTail(const ModelSpec& spec, const Weights& weights, const DecoderStep& step,
                     std::size_t first, StepContext context, AngleTables* angles) {
  const DeviceTail& tail = *step.tail;
  if (tail.arrays.num_tokens == 0) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(MoveTail(spec, tail.arrays, context));
  StepBuffers& b = *step.buffers;
  const auto all = std::tuple(b.positions, b.token_rows, b.row_offsets);
  b.positions = tail.arrays.positions;
  b.token_rows = tail.arrays.token_rows;
  b.row_offsets = tail.arrays.row_offsets;
  context.num_tokens = tail.arrays.num_tokens;
  context.kv = tail.kv;
  absl::Status status = ComputeAngles(spec, step, context.num_tokens, angles);
  if (status.ok()) status = tail.plan();
  for (std::size_t i = first; i < spec.layers.size() && status.ok(); ++i) {
    status = RunLayer(context, spec, weights, i, step.layers->places[i]);
  }
  std::tie(b.positions, b.token_rows, b.row_offsets) = all;
  return status;
}

absl::Status FinalNorm(const ModelSpec& spec, const Weights& weights,
                       const kernels::Backend& backend, const float* x, kernels::FloatPtr y,
                       std::uint32_t num_rows, const std::uint32_t* row_indices) {
  return kernels::RmsNorm(backend, {.x = x,
                                    .weight = weights.final_norm(),
                                    .y = y,
                                    .x_stride = spec.hidden,
                                    .y_stride = spec.hidden,
                                    .num_rows = num_rows,
                                    .hidden = spec.hidden,
                                    .epsilon = spec.final_norm.eps,
                                    .row_indices = row_indices});
}

}  // namespace

absl::Status DecoderForward(const ModelSpec& spec, const Weights& weights,
                            const DecoderStep& step) {
  StepBuffers& b = *step.buffers;
  QUIRE_RETURN_IF_ERROR(kernels::Embedding(*step.backend, {.table = weights.embedding(),
                                                           .tokens = b.tokens,
                                                           .y = b.x,
                                                           .y_stride = spec.hidden,
                                                           .dtype = weights.embedding_dtype(),
                                                           .vocab = spec.vocab_size,
                                                           .hidden = spec.hidden,
                                                           .num_rows = step.num_tokens,
                                                           .scale = spec.embed_scale}));
  QUIRE_RETURN_IF_ERROR(WriteHidden(spec, step, b.x, 0));
  AngleTables angles{};
  QUIRE_RETURN_IF_ERROR(ComputeAngles(spec, step, step.num_tokens, &angles));
  StepContext context{.backend = step.backend,
                      .kv = step.kv,
                      .plans = step.plans,
                      .maps = step.maps,
                      .buffers = step.buffers,
                      .angles = {angles.data(), spec.rope_tables.size()},
                      .num_tokens = step.num_tokens,
                      .batch_size = step.batch_size,
                      .hidden = spec.hidden,
                      .states = step.states,
                      .comm = step.comm,
                      .index = step.index};
  if (spec.layer_inputs.size > 0) {
    QUIRE_RETURN_IF_ERROR(ComputeLayerInputs(context, spec, weights));
  }
  const bool has_tail = step.tail != nullptr || !step.wanted_tokens.empty();
  const std::size_t first_tail = has_tail ? FirstTailLayer(spec) : spec.layers.size();
  std::optional<TailRows> tail;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (i == first_tail && step.tail != nullptr) {
      return RunTail(spec, weights, step, i, context, &angles);
    }
    if (i == first_tail) {
      tail.emplace(spec, step.wanted_tokens, step.cache_lengths, &context);
      context.kv = step.tail_kv;
    }
    if (context.num_tokens > 0) {
      QUIRE_RETURN_IF_ERROR(RunLayer(context, spec, weights, i, step.layers->places[i]));
    }
    QUIRE_RETURN_IF_ERROR(WriteHidden(spec, step, b.x, i + 1));
    if (step.heartbeat != nullptr) step.heartbeat->Beat();
  }
  if (tail) tail->Restore();
  if (step.hidden_out == nullptr) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(FinalNorm(spec, weights, *step.backend, b.x, b.normed, step.num_tokens,
                                  /*row_indices=*/nullptr));
  return WriteHidden(spec, step, b.normed, spec.layers.size() + 1);
}

absl::Status DecoderNorm(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers, std::uint32_t begin,
                         std::uint32_t end) {
  return FinalNorm(spec, weights, backend, buffers->x + std::size_t{begin} * spec.hidden,
                   buffers->head_in, end - begin, /*row_indices=*/nullptr);
}

absl::Status DecoderHead(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers,
                         const std::uint32_t* tokens, std::uint32_t num_rows) {
  QUIRE_RETURN_IF_ERROR(
      FinalNorm(spec, weights, backend, buffers->x, buffers->head_in, num_rows, tokens));
  QUIRE_RETURN_IF_ERROR(ApplyLinear(backend, weights.head(),
                                    {.x = buffers->head_in,
                                     .weight = nullptr,
                                     .y = buffers->logits,
                                     .x_stride = spec.hidden,
                                     .y_stride = spec.vocab_size,
                                     .num_rows = num_rows}));
  if (spec.logit_scale == 1 && spec.logit_softcap == 0) return absl::OkStatus();
  return kernels::Softcap(backend, {.x = buffers->logits,
                                    .x_stride = spec.vocab_size,
                                    .num_rows = num_rows,
                                    .columns = spec.vocab_size,
                                    .scale = spec.logit_scale,
                                    .cap = spec.logit_softcap});
}

}  // namespace quire::models
