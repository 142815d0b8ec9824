#include "runtime/cuda_step_inputs.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/status.h"
#include "kernels/elementwise/step_inputs.h"

namespace quire::runtime {
namespace {

constexpr std::uint32_t kUnknown = std::numeric_limits<std::uint32_t>::max();

// Returns the number of 32-bit words that name the state slots of a batch row.
std::uint32_t StateWords(const models::StepLimits& limits) {
  return limits.num_state_slots > 0 ? kernels::kStateArrays : 0;
}

// Returns the number of 32-bit words of the largest step, rounded up to a multiple of 64. A step
// has arrays of tokens, head tokens, rows, live rows and state slots. In addition, each row in each
// layer group may have one changed range that covers its whole row of the lookup table.
std::int64_t BlockWords(const models::StepLimits& limits) {
  const std::int64_t rows = limits.max_rows;
  const std::int64_t words = 4 * std::int64_t{limits.max_step_tokens} + 4 * rows + 1 +
                             StateWords(limits) * rows +
                             limits.num_groups * rows * (3 + limits.lookup_stride);
  return (words + 63) / 64 * 64;
}

// Writes the first `batch_size` elements of each array of `states`. Returns the end of the output.
std::uint32_t* PackStates(const cache::StateStepInputs& states, std::uint32_t batch_size,
                          std::uint32_t* to) {
  for (const std::uint32_t* const array :
       {states.state_in, states.state_out, states.snapshot_at, states.snapshot_slot}) {
    to = std::copy_n(array, batch_size, to);
  }
  return to;
}

}  // namespace

std::int64_t CudaStepInputs::DeviceBytesFor(const models::StepLimits& limits) {
  return BlockWords(limits) * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

std::int64_t CudaStepInputs::PinnedBytesFor(const models::StepLimits& limits) {
  return kSlots * DeviceBytesFor(limits);
}

absl::StatusOr<CudaStepInputs> CudaStepInputs::Create(const kernels::Backend& backend,
                                                      const models::StepLimits& limits,
                                                      std::uint32_t page_size) {
  CudaStepInputs inputs(limits);
  inputs.backend_ = &backend;
  inputs.page_size_ = page_size;
  QUIRE_ASSIGN_OR_RETURN(inputs.device_,
                         DeviceBuffer::Allocate(MemoryKind::kDevice, DeviceBytesFor(limits)));
  QUIRE_ASSIGN_OR_RETURN(inputs.pinned_,
                         DeviceBuffer::Allocate(MemoryKind::kPinned, PinnedBytesFor(limits)));
  // The lookup tables on the device are zero at first, so their mirror starts at zero.
  const std::size_t table_rows = std::size_t{limits.num_groups} * limits.max_rows;
  inputs.mirror_.assign(table_rows * limits.lookup_stride, 0);
  inputs.mirror_used_.assign(table_rows, 0);
  return inputs;
}

void CudaStepInputs::Forget() {
  std::fill(mirror_.begin(), mirror_.end(), kUnknown);
  std::fill(mirror_used_.begin(), mirror_used_.end(), limits_.lookup_stride);
}

void CudaStepInputs::PackRow(const StepBatch& batch, std::uint32_t group, const StepRow& row,
                             std::uint32_t* block, std::uint32_t* ranges, PackedStep* step) {
  const std::uint32_t stride = limits_.lookup_stride;
  const std::uint32_t* const table =
      batch.kv[group].lookup_table + std::size_t{row.batch_row.value()} * stride;
  const std::uint32_t index = group * limits_.max_rows + row.batch_row.value();
  std::uint32_t* const mirror = mirror_.data() + std::size_t{index} * stride;
  // Counts the leading columns that may have pages: those of the cached and the new tokens, then
  // all columns up to the first one without a page.
  std::uint32_t num_used = (row.cache_length + row.num_tokens + page_size_ - 1) / page_size_;
  while (num_used < stride && table[num_used] != 0) ++num_used;
  const std::uint32_t num_compared = std::max(num_used, mirror_used_[index]);
  mirror_used_[index] = num_used;
  const auto first =
      static_cast<std::uint32_t>(std::mismatch(table, table + num_compared, mirror).first - table);
  if (first == num_compared) return;
  std::uint32_t end = num_compared;
  while (table[end - 1] == mirror[end - 1]) --end;
  std::uint32_t* const range = ranges + 3 * std::size_t{step->num_ranges++};
  range[0] = index * stride + first;
  range[1] = static_cast<std::uint32_t>(step->words);
  range[2] = end - first;
  std::copy(table + first, table + end, block + step->words);
  std::copy(table + first, table + end, mirror + first);
  step->words += end - first;
}

std::uint32_t* CudaStepInputs::PinnedBlock(int slot) {
  return static_cast<std::uint32_t*>(pinned_.data()) +
         std::size_t(slot) * static_cast<std::size_t>(BlockWords(limits_));
}

PackedStep CudaStepInputs::Pack(const StepBatch& batch, int slot, StepOrder* order) {
  QUIRE_CHECK(batch.kv.size() == limits_.num_groups);
  for (const cache::KvStepInputs& kv : batch.kv) {
    QUIRE_CHECK(kv.lookup_stride == limits_.lookup_stride);
  }
  PackedStep step;
  step.num_tokens = static_cast<std::uint32_t>(batch.token_ids.size());
  step.num_live_rows = static_cast<std::uint32_t>(batch.rows.size());
  for (const StepRow& row : batch.rows) {
    step.batch_size = std::max(step.batch_size, row.batch_row.value() + 1);
    step.has_prompt_rows |= row.prompt_tokens > 0;
    step.has_generated_rows |= row.prompt_tokens < row.num_tokens;
  }
  std::uint32_t* const block = PinnedBlock(slot);
  std::uint32_t* const heads = block + 3 * std::size_t{step.num_tokens};
  std::uint32_t* const offsets = heads + batch.logits_tokens.size();
  std::uint32_t* const lengths = offsets + step.batch_size + 1;
  std::uint32_t* const live_rows = lengths + 2 * std::size_t{step.batch_size};
  order->Order(batch, {.tokens = reinterpret_cast<std::int32_t*>(block),
                       .positions = reinterpret_cast<std::int32_t*>(block + step.num_tokens),
                       .row_offsets = offsets,
                       .token_rows = reinterpret_cast<std::int32_t*>(block + 2 * step.num_tokens),
                       .cache_lengths = lengths,
                       .prefill_tokens = lengths + step.batch_size,
                       .live_rows = live_rows});
  for (std::size_t i = 0; i < batch.logits_tokens.size(); ++i) {
    heads[i] = order->step_index()[batch.logits_tokens[i]];
  }
  // `ranges` has room for one changed range per row and layer group. Each range states where its
  // entries are in the block, so a gap between the last range and the first entries is allowed.
  std::uint32_t* ranges = live_rows + step.num_live_rows;
  if (StateWords(limits_) > 0) ranges = PackStates(batch.states, step.batch_size, ranges);
  step.words =
      (ranges - block) + 3 * static_cast<std::int64_t>(batch.rows.size()) * limits_.num_groups;
  for (std::uint32_t group = 0; group < limits_.num_groups; ++group) {
    for (const StepRow& row : batch.rows) PackRow(batch, group, row, block, ranges, &step);
  }
  return step;
}

void CudaStepInputs::SetHeadTokens(const PackedStep& step, int slot,
                                   std::span<const std::uint32_t> tokens) {
  std::copy(tokens.begin(), tokens.end(), PinnedBlock(slot) + 3 * std::size_t{step.num_tokens});
}

absl::Status CudaStepInputs::Upload(const PackedStep& step, int slot, std::uint32_t num_head_tokens,
                                    const StepPadding& padding, const std::int32_t* previous_tokens,
                                    std::uint32_t num_previous, models::StepBuffers* buffers) {
  const auto bytes = step.words * static_cast<std::int64_t>(sizeof(std::uint32_t));
  const std::byte* const block =
      static_cast<const std::byte*>(pinned_.data()) + slot * DeviceBytesFor(limits_);
  QUIRE_RETURN_IF_ERROR(backend_->cuda()->stream->Copy(device_.data(), block, bytes));
  if constexpr (kernels::kHasCuda) {
    return kernels::internal::StepInputsCuda(
        *backend_->cuda(), {.block = static_cast<const std::uint32_t*>(device_.data()),
                            .num_tokens = step.num_tokens,
                            .num_head_tokens = num_head_tokens,
                            .batch_size = step.batch_size,
                            .num_live_rows = step.num_live_rows,
                            .num_ranges = step.num_ranges,
                            .padded_tokens = std::max(padding.tokens, step.num_tokens),
                            .padded_head_tokens = std::max(padding.head_tokens, num_head_tokens),
                            .padded_rows = std::max(padding.rows, step.batch_size),
                            .previous_tokens = previous_tokens,
                            .num_previous = num_previous,
                            .tokens = buffers->tokens,
                            .positions = buffers->positions,
                            .token_rows = buffers->token_rows,
                            .head_tokens = buffers->head_tokens,
                            .row_offsets = buffers->row_offsets,
                            .cache_lengths = buffers->cache_lengths,
                            .prefill_tokens = buffers->prefill_tokens,
                            .live_rows = buffers->live_rows,
                            .lookup_table = buffers->lookup_table,
                            .states = buffers->states,
                            .states_stride = limits_.max_rows});
  }
  return absl::OkStatus();
}

}  // namespace quire::runtime
