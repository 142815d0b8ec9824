#include "models/blocks/decoder.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/status.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "models/blocks/attention_block.h"
#include "models/blocks/mlp_block.h"
#include "models/blocks/step_context.h"

namespace quire::models {
namespace {

// Families have at most one table for full and one for windowed layers; more is a broken spec.
constexpr std::size_t kMaxRopeTables = 4;

absl::Status ComputeAngles(const ModelSpec& spec, const DecoderStep& step,
                           std::array<RopeAngles, kMaxRopeTables>* angles) {
  QUIRE_CHECK(spec.rope_tables.size() <= kMaxRopeTables);
  float* cosines = step.buffers->cosines;
  float* sines = step.buffers->sines;
  for (std::size_t i = 0; i < spec.rope_tables.size(); ++i) {
    const RopeTable& table = spec.rope_tables[i];
    QUIRE_RETURN_IF_ERROR(kernels::RopeAngles(
        *step.backend, {.positions = step.buffers->positions,
                        .inv_freq = table.inv_freq.data(),
                        .cosines = cosines,
                        .sines = sines,
                        .num_rows = step.num_tokens,
                        .num_pairs = static_cast<std::uint32_t>(table.inv_freq.size()),
                        .attention_factor = table.attention_factor}));
    (*angles)[i] = {cosines, sines};
    cosines += step.num_tokens * table.inv_freq.size();
    sines += step.num_tokens * table.inv_freq.size();
  }
  return absl::OkStatus();
}

// Row `index` of hidden_out, in the order of StepBatch.
void WriteHidden(const ModelSpec& spec, const DecoderStep& step, const float* x,
                 std::size_t index) {
  if (step.hidden_out == nullptr) return;
  float* out = step.hidden_out + index * step.num_tokens * spec.hidden;
  for (std::uint32_t i = 0; i < step.num_tokens; ++i) {
    std::copy_n(x + std::size_t{i} * spec.hidden, spec.hidden,
                out + std::size_t{step.buffers->batch_index[i]} * spec.hidden);
  }
}

absl::Status FinalNorm(const ModelSpec& spec, const Weights& weights,
                       const kernels::Backend& backend, const float* x, float* y,
                       std::uint32_t num_rows) {
  return kernels::RmsNorm(backend, {.x = x,
                                    .weight = weights.final_norm().data(),
                                    .y = y,
                                    .x_stride = spec.hidden,
                                    .y_stride = spec.hidden,
                                    .num_rows = num_rows,
                                    .hidden = spec.hidden,
                                    .epsilon = spec.final_norm.eps});
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
  WriteHidden(spec, step, b.x, 0);
  std::array<RopeAngles, kMaxRopeTables> angles{};
  QUIRE_RETURN_IF_ERROR(ComputeAngles(spec, step, &angles));
  const StepContext context{.backend = step.backend,
                            .kv = step.kv,
                            .buffers = step.buffers,
                            .angles = {angles.data(), spec.rope_tables.size()},
                            .num_tokens = step.num_tokens,
                            .batch_size = step.batch_size,
                            .hidden = spec.hidden};
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers()[i];
    QUIRE_RETURN_IF_ERROR(
        AttentionBlock(context, spec.layers[i], layer, static_cast<std::uint32_t>(i)));
    QUIRE_RETURN_IF_ERROR(MlpBlock(context, spec.layers[i], layer));
    WriteHidden(spec, step, b.x, i + 1);
  }
  if (step.hidden_out == nullptr) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(FinalNorm(spec, weights, *step.backend, b.x, b.normed, step.num_tokens));
  WriteHidden(spec, step, b.normed, spec.layers.size() + 1);
  return absl::OkStatus();
}

absl::Status DecoderHead(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers,
                         std::span<const std::uint32_t> tokens) {
  QUIRE_CHECK(tokens.size() <= kHeadRows);
  const std::uint32_t num_rows = static_cast<std::uint32_t>(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::copy_n(buffers->x + std::size_t{tokens[i]} * spec.hidden, spec.hidden,
                buffers->head_in + i * spec.hidden);
  }
  QUIRE_RETURN_IF_ERROR(
      FinalNorm(spec, weights, backend, buffers->head_in, buffers->head_in, num_rows));
  return kernels::Linear(backend, {.x = buffers->head_in,
                                   .weight = &weights.head().packed,
                                   .y = buffers->logits,
                                   .x_stride = spec.hidden,
                                   .y_stride = spec.vocab_size,
                                   .num_rows = num_rows});
}

}  // namespace quire::models
