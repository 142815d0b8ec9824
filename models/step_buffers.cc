#include "models/step_buffers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status.h"

namespace quire::models {
namespace {

// Hands out aligned pieces of a block; without one it only counts.
class Cutter {
 public:
  explicit Cutter(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(std::int64_t count) {
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += count * static_cast<std::int64_t>(sizeof(T));
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlignment = 64;
  std::byte* base_;
  std::int64_t used_ = 0;
};

// Widest rows of any layer, in elements.
struct Widths {
  std::int64_t qkv = 0;
  std::int64_t attended = 0;
  std::int64_t gate_up = 0;
  std::int64_t angles = 0;  // of all rope tables together
};

Widths WidthsOf(const ModelSpec& spec) {
  Widths widths;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& heads = layer.heads;
    const std::int64_t all_heads = std::int64_t{heads.num_heads} + 2 * heads.num_kv_heads;
    widths.qkv = std::max(widths.qkv, all_heads * heads.head_size);
    widths.attended = std::max(widths.attended, std::int64_t{heads.num_heads} * heads.head_size);
    widths.gate_up = std::max(widths.gate_up, 2 * std::int64_t{layer.dense.intermediate});
  }
  for (const RopeTable& table : spec.rope_tables) {
    widths.angles += static_cast<std::int64_t>(table.inv_freq.size());
  }
  return widths;
}

std::int64_t Cut(std::byte* base, const ModelSpec& spec, const StepLimits& limits,
                 StepBuffers* buffers) {
  const std::int64_t tokens = limits.max_step_tokens;
  const Widths widths = WidthsOf(spec);
  Cutter cutter(base);
  buffers->tokens = cutter.Take<std::int32_t>(tokens);
  buffers->positions = cutter.Take<std::int32_t>(tokens);
  buffers->batch_index = cutter.Take<std::uint32_t>(tokens);
  buffers->step_index = cutter.Take<std::uint32_t>(tokens);
  buffers->row_offsets = cutter.Take<std::uint32_t>(std::int64_t{limits.max_rows} + 1);
  buffers->row_order = cutter.Take<std::uint32_t>(limits.max_rows);
  buffers->cosines = cutter.Take<float>(tokens * widths.angles);
  buffers->sines = cutter.Take<float>(tokens * widths.angles);
  buffers->x = cutter.Take<float>(tokens * spec.hidden);
  buffers->normed = cutter.Take<float>(tokens * spec.hidden);
  const std::int64_t attention = tokens * (widths.qkv + widths.attended);
  buffers->qkv = cutter.Take<float>(std::max(attention, tokens * widths.gate_up));
  buffers->attended = base == nullptr ? nullptr : buffers->qkv + tokens * widths.qkv;
  buffers->gate_up = buffers->qkv;
  buffers->head_in = cutter.Take<float>(std::int64_t{kHeadRows} * spec.hidden);
  buffers->logits = cutter.Take<float>(std::int64_t{kHeadRows} * spec.vocab_size);
  buffers->draw_top =
      cutter.Take<kernels::TopLogprob>(std::int64_t{limits.max_step_draws} * limits.max_logprobs);
  buffers->score_top = cutter.Take<kernels::TopLogprob>(tokens * limits.max_logprobs);
  return cutter.used();
}

}  // namespace

std::int64_t StepBuffers::BytesFor(const ModelSpec& spec, const StepLimits& limits) {
  StepBuffers counted;
  return Cut(nullptr, spec, limits, &counted);
}

absl::StatusOr<StepBuffers> StepBuffers::Allocate(const ModelSpec& spec, const StepLimits& limits) {
  StepBuffers buffers;
  QUIRE_ASSIGN_OR_RETURN(buffers.memory,
                         DeviceBuffer::Allocate(MemoryKind::kHost, BytesFor(spec, limits)));
  Cut(static_cast<std::byte*>(buffers.memory.data()), spec, limits, &buffers);
  return buffers;
}

}  // namespace quire::models
