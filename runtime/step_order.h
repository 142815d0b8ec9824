#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/blocks/step_buffers.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// The host arrays that StepOrder fills. The last four may be null.
struct StepArrays {
  std::int32_t* tokens;                     // [num_tokens]
  std::int32_t* positions;                  // [num_tokens]
  std::uint32_t* row_offsets;               // [max_rows + 1]
  std::int32_t* token_rows = nullptr;       // [num_tokens] batch row of each token
  std::uint32_t* cache_lengths = nullptr;   // [max_rows] 0 for rows that are not scheduled
  std::uint32_t* prefill_tokens = nullptr;  // [max_rows] 0 for rows that are not scheduled
  std::uint32_t* live_rows = nullptr;       // [num_rows] scheduled rows, ascending
};

// Orders the tokens of a step by batch row. Kernels read the tokens of batch row b at
// row_offsets[b] to row_offsets[b + 1], but a StepBatch may list its rows in any order.
//
// Place:      host logic that both runners share.
// Threads:    the engine thread. Only the constructor allocates memory.
class StepOrder {
 public:
  explicit StepOrder(const models::StepLimits& limits);

  // Returns the batch size, which is 1 + the last scheduled batch row. REQUIRES:
  // CheckStepBatch(batch) is OK.
  std::uint32_t Order(const StepBatch& batch, const StepArrays& out);

  // Results of the last Order: for each token of the step, its index in StepBatch::token_ids, and
  // the inverse of this permutation.
  std::span<const std::uint32_t> batch_index() const { return batch_index_; }
  std::span<const std::uint32_t> step_index() const { return step_index_; }

 private:
  std::vector<std::uint32_t> row_order_;  // StepBatch::rows by batch row
  std::vector<std::uint32_t> batch_index_;
  std::vector<std::uint32_t> step_index_;
};

}  // namespace quire::runtime
