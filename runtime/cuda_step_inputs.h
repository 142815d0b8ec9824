#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "kernels/backend/backend.h"
#include "models/blocks/step_buffers.h"
#include "runtime/step/step_batch.h"
#include "runtime/step_order.h"

namespace quire::runtime {

// A step as it was packed.
struct PackedStep {
  std::uint32_t num_tokens = 0;
  std::uint32_t batch_size = 0;
  std::uint32_t num_ranges = 0;  // changed parts of the lookup tables
  std::int64_t words = 0;
  bool has_prompt_rows = false;
  bool has_generated_rows = false;
};

// How far the arrays are filled beyond the step, for captured graphs.
struct StepPadding {
  std::uint32_t tokens = 0;
  std::uint32_t head_tokens = 0;
  std::uint32_t rows = 0;
};

// Brings a step's host arrays to the device: packs them into one of two pinned buffers, copies that
// block once, and has a kernel put each array in its place. Of the lookup tables, one per layer
// group, only what has changed since the last step goes.
//
// Place:      part of CudaRunner.
// Invariants: after Upload the rows of the step in the device's tables equal the host's, columns
//             without a page included; `mirror` is what the device has.
// Threads:    the engine thread.
// Lifetime:   backend and buffers outlive it; a pinned buffer is free again when the step that used
//             it has ended.
class CudaStepInputs {
 public:
  static constexpr int kSlots = 2;

  // Bytes that Create takes, on the device and pinned.
  static std::int64_t DeviceBytesFor(const models::StepLimits& limits);
  static std::int64_t PinnedBytesFor(const models::StepLimits& limits);

  static absl::StatusOr<CudaStepInputs> Create(const kernels::Backend& backend,
                                               const models::StepLimits& limits,
                                               std::uint32_t page_size);

  // REQUIRES: CheckStepBatch(batch) is OK; the step that used `slot` before has ended.
  PackedStep Pack(const StepBatch& batch, int slot, StepOrder* order);

  // Enqueues copy and kernel. `previous_tokens` [num_previous] are what token ids below 0 stand
  // for.
  absl::Status Upload(const PackedStep& step, int slot, std::uint32_t num_head_tokens,
                      const StepPadding& padding, const std::int32_t* previous_tokens,
                      std::uint32_t num_previous, models::StepBuffers* buffers);

  // After an error: what the device has is not known.
  void Forget();

 private:
  explicit CudaStepInputs(const models::StepLimits& limits) : limits_(limits) {}

  // Appends the changed part of a row of a group's table to the block at `words`, whose ranges
  // begin at `ranges`.
  void PackRow(const StepBatch& batch, std::uint32_t group, const StepRow& row,
               std::uint32_t* block, std::uint32_t* ranges, PackedStep* step);

  const kernels::Backend* backend_ = nullptr;
  models::StepLimits limits_;
  std::uint32_t page_size_ = 0;
  DeviceBuffer pinned_;
  DeviceBuffer device_;
  std::vector<std::uint32_t> mirror_;       // [num_groups, max_rows, lookup_stride]
  std::vector<std::uint32_t> mirror_used_;  // [num_groups, max_rows] entries that may not be 0
};

}  // namespace quire::runtime
