#pragma once

#include <cstdint>
#include <optional>
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

// The sizes of a packed step.
struct PackedStep {
  std::uint32_t num_tokens = 0;
  std::uint32_t batch_size = 0;
  std::uint32_t num_live_rows = 0;
  std::uint32_t num_ranges = 0;  // changed ranges of the lookup tables
  std::int64_t words = 0;        // 32-bit words to copy
  bool has_prompt_rows = false;
  bool has_generated_rows = false;
  // The tokens that the tail layers compute (CudaTail); absent: all tokens. If set, the list of
  // tokens that need logits has indices into these tokens.
  std::optional<models::TailArrays> tail = std::nullopt;
};

// Sizes to which the arrays of a step are padded for captured graphs.
struct StepPadding {
  std::uint32_t tokens = 0;
  std::uint32_t head_tokens = 0;
  std::uint32_t rows = 0;
};

// Uploads the host arrays of a step. They are packed into one of two pinned buffers and copied as
// one block, and a kernel scatters them to their arrays. The lookup tables of pages, one per layer
// group, are uploaded only where they changed since the last step.
//
// Place:      part of CudaRunner.
// Invariants: after Upload, the table rows of the step's sequences on the device equal those on the
//             host, including columns without a page. mirror_ equals the device's tables. After
//             Forget, the entries of mirror_ match no page.
// Threads:    the engine thread.
// Lifetime:   backend and buffers must outlive it. A pinned buffer may be reused when the step that
//             used it has completed.
class CudaStepInputs {
 public:
  static constexpr int kSlots = 2;

  // Return the bytes that Create allocates on the device and in pinned memory.
  static std::int64_t DeviceBytesFor(const models::StepLimits& limits);
  static std::int64_t PinnedBytesFor(const models::StepLimits& limits);

  static absl::StatusOr<CudaStepInputs> Create(const kernels::Backend& backend,
                                               const models::StepLimits& limits,
                                               std::uint32_t page_size);

  // REQUIRES: CheckStepBatch(batch) is OK; the step that last used `slot` has completed.
  PackedStep Pack(const StepBatch& batch, int slot, StepOrder* order);

  // Overwrites the list of tokens that need logits. Pack filled it in the order of the step.
  void SetHeadTokens(const PackedStep& step, int slot, std::span<const std::uint32_t> tokens);

  // Enqueues the copy of the pinned buffer and the kernel that scatters it. Token ids below 0 refer
  // to `previous_tokens` [num_previous] (StepBatch::token_ids).
  absl::Status Upload(const PackedStep& step, int slot, std::uint32_t num_head_tokens,
                      const StepPadding& padding, const std::int32_t* previous_tokens,
                      std::uint32_t num_previous, models::StepBuffers* buffers);

  // Makes later steps upload whole rows of the tables. Called after an error, when the contents of
  // the device's tables are unknown.
  void Forget();

 private:
  explicit CudaStepInputs(const models::StepLimits& limits) : limits_(limits) {}

  // Finds the range of a table row that has changed since the last upload. Appends the entries of
  // the range to `block` at step->words, and its position to `ranges`.
  void PackRow(const StepBatch& batch, std::uint32_t group, const StepRow& row,
               std::uint32_t* block, std::uint32_t* ranges, PackedStep* step);

  std::uint32_t* PinnedBlock(int slot);

  const kernels::Backend* backend_ = nullptr;
  models::StepLimits limits_;
  std::uint32_t page_size_ = 0;
  DeviceBuffer pinned_;
  DeviceBuffer device_;
  std::vector<std::uint32_t> mirror_;  // [num_groups, max_rows, lookup_stride]
  // [num_groups, max_rows]: leading entries that may be nonzero
  std::vector<std::uint32_t> mirror_used_;
};

}  // namespace quire::runtime
