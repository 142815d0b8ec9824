#pragma once

// Copies the input arrays of a step to the device. The host packs the arrays into one block and
// copies the block once. A kernel then scatters the arrays to fixed addresses, so that captured
// graphs can read them.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

// A changed range of entries in a row of a lookup table.
struct LookupRange {
  std::uint32_t to;     // index of the first changed entry in StepInputsParams::lookup_table
  std::uint32_t from;   // index in the block of the first new value
  std::uint32_t count;  // number of entries
};

// The block has these arrays of words, in order:
//   [num_tokens] each        token ids, positions and batch rows of the tokens
//   [num_head_tokens]        head tokens: indices of the tokens whose logits the LM head computes
//   [batch_size + 1]         row offsets
//   [batch_size] each        cache lengths and numbers of prefill tokens
//   [num_live_rows]          live rows
//   [batch_size] each        arrays of cache::StateStepInputs in order, only if `states` is set
//   [num_ranges] x 3         ranges (LookupRange)
//   rest of the block        the entries that the ranges point to
// All pointers point to device memory.
struct StepInputsParams {
  const std::uint32_t* block;
  std::uint32_t num_tokens;
  std::uint32_t num_head_tokens;
  std::uint32_t batch_size;
  std::uint32_t num_live_rows;  // rows with tokens
  std::uint32_t num_ranges;
  // The numbers after padding, each at least the unpadded number above. Padding tokens have id 0,
  // position 0 and row -1. Padding head tokens have index 0, and padding rows are empty.
  std::uint32_t padded_tokens;
  std::uint32_t padded_head_tokens;
  std::uint32_t padded_rows;
  // A token id t below 0 stands for the token previous_tokens[-(t + 1)], which the previous step
  // sampled. If that entry is below 0 (no token), token 0 is used.
  const std::int32_t* previous_tokens;  // [num_previous]
  std::uint32_t num_previous;
  // Output arrays.
  std::int32_t* tokens;
  std::int32_t* positions;
  std::int32_t* token_rows;
  std::uint32_t* head_tokens;
  std::uint32_t* row_offsets;
  std::uint32_t* cache_lengths;
  std::uint32_t* prefill_tokens;  // number of prefill tokens of each row
  std::uint32_t* live_rows;       // [1 + num_live_rows] the number of live rows, then their indices
  std::uint32_t* lookup_table;    // tables of all layer groups, concatenated
  // [kStateArrays, states_stride] arrays of cache::StateStepInputs; null: no recurrent layers.
  std::uint32_t* states = nullptr;
  std::uint32_t states_stride = 0;  // at least padded_rows
};

// Number of arrays of cache::StateStepInputs.
inline constexpr std::uint32_t kStateArrays = 4;

namespace internal {

absl::Status StepInputsCuda(const CudaContext& context, const StepInputsParams& params);

}  // namespace internal
}  // namespace quire::kernels
