#include "models/blocks/tail_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "kernels/moe/expert_rows.h"

namespace quire::models {
namespace {

void MoveRows(float* to, const float* from, std::size_t floats) {
  if (to != from) std::memmove(to, from, floats * sizeof(float));
}

}  // namespace

std::size_t FirstTailLayer(const ModelSpec& spec) {
  std::size_t first = spec.layers.size();
  const auto writes = [](const LayerSpec& layer) { return layer.stores_kv() || layer.has_state(); };
  while (first > 0 && !writes(spec.layers[first - 1])) --first;
  return first;
}

absl::Status MoveTail(const ModelSpec& spec, const TailArrays& tail, const StepContext& context) {
  if (tail.num_tokens == 0) return absl::OkStatus();
  const StepBuffers& b = *context.buffers;
  const auto gather = [&](const float* x, const std::uint32_t* rows, float* y,
                          std::size_t columns) {
    return kernels::GatherRows(*context.backend, {.x = x,
                                                  .rows = rows,
                                                  .y = y,
                                                  .x_stride = static_cast<std::int64_t>(columns),
                                                  .y_stride = static_cast<std::int64_t>(columns),
                                                  .num_rows = tail.num_tokens,
                                                  .columns = static_cast<std::uint32_t>(columns)});
  };
  // A gather in place could overwrite rows of x before they are read. tail_values holds a copy.
  const auto move = [&](float* x, std::size_t columns) -> absl::Status {
    QUIRE_RETURN_IF_ERROR(gather(x, tail.tokens, b.tail_values, columns));
    return gather(b.tail_values, nullptr, x, columns);
  };
  QUIRE_RETURN_IF_ERROR(move(b.x, spec.hidden));
  if (b.layer_inputs == nullptr) return absl::OkStatus();
  return move(b.layer_inputs, spec.layer_inputs.size * spec.layers.size());
}

TailRows::TailRows(const ModelSpec& spec, std::span<const std::uint32_t> wanted_tokens,
                   const std::uint32_t* cache_lengths, StepContext* context)
    : context_(*context), num_rows_(context->batch_size) {
  StepBuffers& b = *context_.buffers;
  QUIRE_CHECK(wanted_tokens.size() >= num_rows_);
  std::copy_n(b.row_offsets, num_rows_ + 1, b.tail_offsets);
  for (std::uint32_t row = 0; row < num_rows_; ++row) {
    const std::uint32_t tokens = b.tail_offsets[row + 1] - b.tail_offsets[row];
    QUIRE_CHECK(wanted_tokens[row] <= tokens);
    b.tail_lengths[row] = cache_lengths[row] + tokens - wanted_tokens[row];
    b.row_offsets[row + 1] = b.row_offsets[row] + wanted_tokens[row];
  }
  const std::size_t all_tokens = context_.num_tokens;
  context_.num_tokens = b.row_offsets[num_rows_];
  Move(b.x, spec.hidden);
  if (b.layer_inputs != nullptr) Move(b.layer_inputs, spec.layer_inputs.size * spec.layers.size());
  float* cosines = b.cosines;
  float* sines = b.sines;
  for (const RopeTable& table : spec.rope_tables) {
    const std::size_t entries = table.inv_freq.size();
    Move(cosines, entries);
    Move(sines, entries);
    cosines += all_tokens * entries;
    sines += all_tokens * entries;
  }
}

void TailRows::Move(float* values, std::size_t columns) const {
  const StepBuffers& b = *context_.buffers;
  for (std::uint32_t row = 0; row < num_rows_; ++row) {
    const std::size_t kept = b.row_offsets[row + 1] - b.row_offsets[row];
    MoveRows(values + b.row_offsets[row] * columns,
             values + (b.tail_offsets[row + 1] - kept) * columns, kept * columns);
  }
}

void TailRows::Restore() {
  StepBuffers& b = *context_.buffers;
  const std::size_t columns = context_.hidden;
  // The last row is moved first, because rows move towards the end of x.
  for (std::uint32_t row = num_rows_; row-- > 0;) {
    const std::size_t kept = b.row_offsets[row + 1] - b.row_offsets[row];
    MoveRows(b.x + (b.tail_offsets[row + 1] - kept) * columns, b.x + b.row_offsets[row] * columns,
             kept * columns);
  }
  std::copy_n(b.tail_offsets, num_rows_ + 1, b.row_offsets);
  context_.num_tokens = b.row_offsets[num_rows_];
}

}  // namespace quire::models
