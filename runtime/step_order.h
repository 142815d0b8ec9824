#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/blocks/step_buffers.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// Host arrays that StepOrder fills; the last three may be null.
struct StepArrays {
  std::int32_t* tokens;                     // [num_tokens]
  std::int32_t* positions;                  // [num_tokens]
  std::uint32_t* row_offsets;               // [max_rows + 1]
  std::int32_t* token_rows = nullptr;       // [num_tokens] batch row of each token
  std::uint32_t* cache_lengths = nullptr;   // [max_rows] of scheduled rows, 0 for others
  std::uint32_t* prefill_tokens = nullptr;  // [max_rows] likewise
};

// Kernels want the tokens of batch row b at row_offsets[b] .. row_offsets[b + 1]; a StepBatch may
// list its rows in any order.
//
// Place:      host logic that both runners share.
// Threads:    the engine thread. Lifetime: none; allocates in the constructor only.
class StepOrder {
 public:
  explicit StepOrder(const models::StepLimits& limits);

  // Returns the batch size: 1 + the last scheduled batch row. REQUIRES: CheckStepBatch(batch) is
  // OK.
  std::uint32_t Order(const StepBatch& batch, const StepArrays& out);

  // Of the last Order. Index into StepBatch::token_ids by place in the step, and the inverse.
  std::span<const std::uint32_t> batch_index() const { return batch_index_; }
  std::span<const std::uint32_t> step_index() const { return step_index_; }

 private:
  std::vector<std::uint32_t> row_order_;  // StepBatch::rows by batch row
  std::vector<std::uint32_t> batch_index_;
  std::vector<std::uint32_t> step_index_;
};

}  // namespace quire::runtime
