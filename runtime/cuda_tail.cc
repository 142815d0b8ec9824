#include "runtime/cuda_tail.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/status.h"

namespace quire::runtime {
namespace {

constexpr std::uint32_t kNoRow = std::numeric_limits<std::uint32_t>::max();

// Returns the number of 32-bit words of the arrays of all rows: offsets, cached tokens and prefill
// tokens.
std::size_t RowWords(const models::StepLimits& limits) {
  return 3 * std::size_t{limits.max_rows} + 1;
}

// Returns the number of 32-bit words of the largest step: the arrays of rows, then tokens,
// positions and batch rows. The number is a multiple of 64.
std::int64_t TailWords(const models::StepLimits& limits) {
  const std::int64_t words =
      static_cast<std::int64_t>(RowWords(limits)) + 3 * std::int64_t{limits.max_step_tokens};
  return (words + 63) / 64 * 64;
}

}  // namespace

std::int64_t CudaTail::DeviceBytesFor(const models::StepLimits& limits) {
  return TailWords(limits) * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

std::int64_t CudaTail::PinnedBytesFor(const models::StepLimits& limits) {
  return kSlots * DeviceBytesFor(limits);
}

absl::StatusOr<CudaTail> CudaTail::Create(const kernels::Backend& backend,
                                          const models::StepLimits& limits) {
  CudaTail tail(limits);
  tail.backend_ = &backend;
  QUIRE_ASSIGN_OR_RETURN(tail.device_,
                         DeviceBuffer::Allocate(MemoryKind::kDevice, DeviceBytesFor(limits)));
  QUIRE_ASSIGN_OR_RETURN(tail.pinned_,
                         DeviceBuffer::Allocate(MemoryKind::kPinned, PinnedBytesFor(limits)));
  tail.num_tail_tokens_.resize(limits.max_rows);
  tail.rows_.resize(limits.max_rows);
  tail.head_tokens_.reserve(limits.max_step_tokens);
  return tail;
}

bool CudaTail::Choose(const StepBatch& batch, int slot, const StepOrder& order) {
  num_tokens_ = 0;
  if (batch.hidden_out != nullptr || !batch.pools.empty()) return false;
  std::fill(num_tail_tokens_.begin(), num_tail_tokens_.end(), 0u);
  std::fill(rows_.begin(), rows_.end(), kNoRow);
  for (std::uint32_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    const auto first =
        std::lower_bound(batch.logits_tokens.begin(), batch.logits_tokens.end(), row.first_token);
    const std::uint32_t end = row.first_token + row.num_tokens;
    const bool has_logits = first != batch.logits_tokens.end() && *first < end;
    rows_[row.batch_row.value()] = i;
    num_tail_tokens_[row.batch_row.value()] = has_logits ? end - *first : 0;
    num_tokens_ += has_logits ? end - *first : 0;
  }
  if (num_tokens_ == batch.token_ids.size()) return false;
  auto* const offsets = static_cast<std::uint32_t*>(pinned_.data()) +
                        slot * static_cast<std::size_t>(TailWords(limits_));
  std::uint32_t* const lengths = offsets + limits_.max_rows + 1;
  std::uint32_t* const prefill = lengths + limits_.max_rows;
  std::uint32_t* const tokens = offsets + RowWords(limits_);
  std::uint32_t* const positions = tokens + num_tokens_;
  std::uint32_t* const token_rows = positions + num_tokens_;
  std::uint32_t at = 0;
  for (std::uint32_t b = 0; b < limits_.max_rows; ++b) {
    offsets[b] = at;
    lengths[b] = prefill[b] = 0;
    if (rows_[b] == kNoRow) continue;
    const StepRow& row = batch.rows[rows_[b]];
    const std::uint32_t skipped = row.num_tokens - num_tail_tokens_[b];
    lengths[b] = row.cache_length + skipped;
    prefill[b] = row.prompt_tokens - std::min(row.prompt_tokens, skipped);
    const std::uint32_t first = order.step_index()[row.first_token] + skipped;
    for (std::uint32_t i = 0; i < num_tail_tokens_[b]; ++i, ++at) {
      tokens[at] = first + i;
      positions[at] = lengths[b] + i;
      token_rows[at] = b;
    }
  }
  offsets[limits_.max_rows] = at;
  head_tokens_.clear();
  for (const std::uint32_t token : batch.logits_tokens) {
    const std::uint32_t* const found =
        std::lower_bound(tokens, tokens + num_tokens_, order.step_index()[token]);
    head_tokens_.push_back(static_cast<std::uint32_t>(found - tokens));
  }
  return true;
}

absl::Status CudaTail::Upload(int slot) const {
  const auto* const block =
      static_cast<const std::byte*>(pinned_.data()) + slot * DeviceBytesFor(limits_);
  const std::size_t words = RowWords(limits_) + 3 * std::size_t{num_tokens_};
  return backend_->cuda()->stream->Copy(device_.data(), block,
                                        static_cast<std::int64_t>(words * sizeof(std::uint32_t)));
}

models::TailArrays CudaTail::arrays() const {
  auto* const offsets = static_cast<std::uint32_t*>(device_.data());
  std::uint32_t* const lengths = offsets + limits_.max_rows + 1;
  std::uint32_t* const tokens = offsets + RowWords(limits_);
  return {.tokens = tokens,
          .positions = reinterpret_cast<std::int32_t*>(tokens + num_tokens_),
          .token_rows = reinterpret_cast<std::int32_t*>(tokens + 2 * std::size_t{num_tokens_}),
          .row_offsets = offsets,
          .cache_lengths = lengths,
          .prefill_tokens = lengths + limits_.max_rows,
          .num_tokens = num_tokens_};
}

}  // namespace quire::runtime
