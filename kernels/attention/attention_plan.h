#pragma once

// Divides a step's attention into work items. The CPU divides a step inside PagedAttention. On a
// GPU the planner kernel builds the work lists once per step, window and head shape. All layers
// with that window and head shape share the lists.
//
// The rows of a sequence have two classes: prefill tokens come first, then decode tokens. A row
// keeps its class when it is recomputed, because the kernels of the two classes have different
// reduction orders (kernels/cuda/README.md).

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

// The largest step that a plan supports, and the shape of the layers that read the plan.
struct AttentionPlanLimits {
  std::uint32_t max_sequences = 0;    // sequences in a step
  std::uint32_t max_step_tokens = 0;  // tokens of a step
  std::uint32_t max_length = 0;       // tokens of a sequence
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_size = 0;
  // Maximum number of tokens that a query of the layers sees, including its own; 0: no limit.
  // Decode items may skip keys before the window. Layers with chunks use a window of the chunk
  // length.
  std::uint32_t window = 0;
  friend bool operator==(const AttentionPlanLimits&, const AttentionPlanLimits&) = default;
};

// Lengths of a step. All pointers point to device memory and stay the same for the life of the
// plan, so that the planner can be captured in a graph.
struct AttentionPlanParams {
  const std::uint32_t* row_offsets;     // [batch_size + 1]
  const std::uint32_t* cache_lengths;   // [batch_size] tokens cached before the step
  const std::uint32_t* prefill_tokens;  // [batch_size] prefill tokens in the step
  // [1 + batch_size] the number of sequences with tokens in the step, then their indices in
  // ascending order. Kernels read no other sequences. The time of a captured planner therefore
  // depends on this number and not on batch_size.
  const std::uint32_t* live_sequences;
  std::uint32_t batch_size;
  // True if the step has prefill tokens (has_prompt_rows) or decode tokens (has_generated_rows).
  // The host sets both, so that kernels of an empty class are not launched.
  bool has_prompt_rows;
  bool has_generated_rows;
};

// Device memory of the work lists, the counters and the partial results.
//
// Place:      created by the CUDA runner, one per window and head shape; filled by PlanAttention;
//             read by PagedAttention.
// Invariants: README.md, "The planner". Every (row, KV tile) inside the window is covered exactly
//             once. The split of a row does not affect its bits.
// Threads:    the thread that enqueues.
// Lifetime:   outlives every step that was enqueued with it.
class AttentionPlan {
 public:
  // Returns the bytes of device memory that Create allocates. REQUIRES: Create accepts the limits.
  static std::int64_t BytesFor(const AttentionPlanLimits& limits, std::uint32_t num_sms);
  // Returns INVALID_ARGUMENT if a limit other than `window` is 0, num_heads is not a multiple of
  // num_kv_heads, or max_sequences exceeds kMaxPlanSequences (attention_work.h). Returns
  // RESOURCE_EXHAUSTED if device memory cannot be allocated. REQUIRES: a CUDA backend.
  static absl::StatusOr<std::unique_ptr<AttentionPlan>> Create(const Backend& backend,
                                                               const AttentionPlanLimits& limits);

  const AttentionPlanLimits& limits() const { return limits_; }
  // Returns the parameters of the last planned step.
  const AttentionPlanParams& params() const { return params_; }

 private:
  friend absl::Status PlanAttention(const Backend& backend, const AttentionPlanParams& params,
                                    AttentionPlan* plan);
  friend struct AttentionPlanAccess;  // used by the CUDA kernels and tests

  AttentionPlan() = default;

  AttentionPlanLimits limits_;
  AttentionPlanParams params_{};
  std::uint32_t num_sms_ = 0;
  DeviceBuffer memory_;
};

// Enqueues the planner. Call it before the first PagedAttention of the step. Returns
// INVALID_ARGUMENT if batch_size is 0 or exceeds the plan's limit.
absl::Status PlanAttention(const Backend& backend, const AttentionPlanParams& params,
                           AttentionPlan* plan);

}  // namespace quire::kernels
