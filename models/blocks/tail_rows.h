#pragma once

// The tail consists of the layers after the last one that writes to the cache (K and V, rows of a
// sparse index, or a recurrent state). These layers read the K and V of earlier layers, or have no
// attention. Their results are needed only for tokens whose output is wanted, so they compute only
// these tokens, the last ones of each row of the step. The CPU moves the values of these tokens to
// the front of the step's arrays and back (TailRows). On a GPU the runner uploads arrays that
// describe these tokens (TailArrays), and their values stay at the front.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "models/blocks/step_buffers.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// Returns the index of the first layer of the tail, or the number of layers if there is no tail.
std::size_t FirstTailLayer(const ModelSpec& spec);

// The tokens of the tail on a GPU. All arrays are in device memory.
struct TailArrays {
  const std::uint32_t* tokens = nullptr;    // [num_tokens] index in the step, ascending
  std::int32_t* positions = nullptr;        // [num_tokens]
  std::int32_t* token_rows = nullptr;       // [num_tokens] batch row
  std::uint32_t* row_offsets = nullptr;     // [batch_size + 1] first index in `tokens` of each row
  std::uint32_t* cache_lengths = nullptr;   // [batch_size] position of the first token of each row
  std::uint32_t* prefill_tokens = nullptr;  // [batch_size] number of prompt tokens in `tokens`
  std::uint32_t num_tokens = 0;
};

// Moves x and layer_inputs of the tail's tokens to the front of these buffers. Uses the buffer
// tail_values. REQUIRES: a GPU.
absl::Status MoveTail(const ModelSpec& spec, const TailArrays& tail, const StepContext& context);

// Moves the wanted tokens of a step to the front of the step's arrays, and back.
//
// Place:      used by the decoder before the first tail layer and after the last one.
// Invariants: bits of a token do not depend on which other tokens are computed.
// Threads:    one; host memory only.
class TailRows {
 public:
  // Keeps the last wanted_tokens[b] tokens of each row b. Changes `context` and, in its buffers, x,
  // layer_inputs, row_offsets and the angles. Sets tail_lengths[b], in the same buffers, to the
  // position of the first kept token of row b. REQUIRES: wanted_tokens[b] is at most the number of
  // tokens of row b; cache_lengths[b] is the number of cached tokens of row b.
  TailRows(const ModelSpec& spec, std::span<const std::uint32_t> wanted_tokens,
           const std::uint32_t* cache_lengths, StepContext* context);

  // Moves the kept tokens of x back and restores row_offsets. The values of all other tokens are
  // undefined.
  void Restore();

 private:
  void Move(float* values, std::size_t columns) const;

  StepContext& context_;
  const std::uint32_t num_rows_;
};

}  // namespace quire::models
