#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "kernels/backend/backend.h"
#include "models/blocks/step_buffers.h"
#include "models/blocks/tail_rows.h"
#include "runtime/step/step_batch.h"
#include "runtime/step_order.h"

namespace quire::runtime {

// Chooses the tokens that the tail layers (tail_rows.h) of a step compute, and uploads them. In
// each row, the tail has the tokens from the first token with logits to the last token.
//
// Place:      part of CudaRunner, if the model has tail layers.
// Invariants: a step has no tail if it runs as a graph, if hidden states or pools are requested, or
//             if every row has logits from its first token on.
// Threads:    the engine thread.
// Lifetime:   the backend must outlive it. A pinned buffer may be reused when the step that used it
//             has completed.
class CudaTail {
 public:
  static constexpr int kSlots = 2;

  // Return the bytes that Create allocates on the device and in pinned memory.
  static std::int64_t DeviceBytesFor(const models::StepLimits& limits);
  static std::int64_t PinnedBytesFor(const models::StepLimits& limits);

  static absl::StatusOr<CudaTail> Create(const kernels::Backend& backend,
                                         const models::StepLimits& limits);

  // Returns false if the step has no tail. Otherwise fills the pinned buffer of `slot`. REQUIRES:
  // `order` was filled for `batch`; the step that last used `slot` has completed.
  bool Choose(const StepBatch& batch, int slot, const StepOrder& order);
  // Enqueues the copy of the buffer that Choose filled.
  absl::Status Upload(int slot) const;

  // Result of the last Choose: for each of StepBatch::logits_tokens, in that order, its index among
  // the tokens of the tail.
  std::span<const std::uint32_t> head_tokens() const { return head_tokens_; }
  // The arrays of the tail in device memory. The addresses of row_offsets, cache_lengths and
  // prefill_tokens never change.
  models::TailArrays arrays() const;

 private:
  explicit CudaTail(const models::StepLimits& limits) : limits_(limits) {}

  const kernels::Backend* backend_ = nullptr;
  models::StepLimits limits_;
  DeviceBuffer pinned_;
  DeviceBuffer device_;
  std::uint32_t num_tokens_ = 0;
  std::vector<std::uint32_t> num_tail_tokens_;  // [max_rows] of each batch row
  std::vector<std::uint32_t> rows_;             // [max_rows] index in StepBatch::rows, or kNoRow
  std::vector<std::uint32_t> head_tokens_;
};

}  // namespace quire::runtime
