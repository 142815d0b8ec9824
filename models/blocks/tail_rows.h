#pragma once

// Last layers that read the K and V of earlier ones, or have no attention, write nothing that later
// steps read. So their results are needed only for tokens whose output is wanted. These layers
// compute the last tokens of each row alone.

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/blocks/step_buffers.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// Returns the index of the first layer of the tail: the last layers that store neither K and V (or
// index rows) nor a state. Returns the number of layers if the last layer stores either.
std::size_t FirstTailLayer(const ModelSpec& spec);

// Moves the wanted tokens of a step to the front of the step's arrays, and back.
//
// Place:      between the layers that write K and V or states and those that do not.
// Invariants: bits of a token do not depend on which other tokens are computed.
// Threads:    one; host memory only.
class TailRows {
 public:
  // Keeps the last wanted[b] tokens of each row b. Changes `context` and the arrays x,
  // layer_inputs, row_offsets and the angles of its buffers, and writes tail_lengths: the position
  // of the first kept token of each row. REQUIRES: wanted[b] is at most the tokens of row b;
  // cache_lengths has the cached tokens of each row.
  TailRows(const ModelSpec& spec, std::span<const std::uint32_t> wanted,
           const std::uint32_t* cache_lengths, StepContext* context);

  // Moves the rows of x back and restores row_offsets. Rows that were not kept are undefined.
  void Restore();

 private:
  void Move(float* values, std::size_t columns) const;

  StepContext& context_;
  const std::uint32_t num_rows_;
};

}  // namespace quire::models
