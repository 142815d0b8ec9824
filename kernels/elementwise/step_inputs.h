#pragma once

// A step's arrays on the device. They come from the host as one block, packed without gaps and
// copied once; a kernel puts every array in its place, which never changes, so that captured graphs
// can read it.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

// Part of a row of a lookup table that has changed.
struct LookupRange {
  std::uint32_t to;     // first entry, index into the tables
  std::uint32_t from;   // index of its first word in the block
  std::uint32_t count;  // entries
};

// Words of the block, in this order: tokens, positions and token rows [num_tokens] each, head
// tokens [num_head_tokens], row offsets [batch_size + 1], cache lengths and prefill tokens
// [batch_size] each, ranges [num_ranges] as three words each; then the entries that ranges point
// to. All pointers are device memory.
struct StepInputsParams {
  const std::uint32_t* block;
  std::uint32_t num_tokens;
  std::uint32_t num_head_tokens;
  std::uint32_t batch_size;
  std::uint32_t num_ranges;
  // At least the numbers above: further tokens are id 0 at position 0 in no row, further head
  // tokens are token 0, further rows are empty.
  std::uint32_t padded_tokens;
  std::uint32_t padded_head_tokens;
  std::uint32_t padded_rows;
  // What a token id below 0 stands for: draw -(id + 1) of the step before. An id that was not drawn
  // (below 0) is 0.
  const std::int32_t* previous_tokens;  // [num_previous]
  std::uint32_t num_previous;
  // Out.
  std::int32_t* tokens;
  std::int32_t* positions;
  std::int32_t* token_rows;
  std::uint32_t* head_tokens;
  std::uint32_t* row_offsets;
  std::uint32_t* cache_lengths;
  std::uint32_t* prefill_tokens;
  std::uint32_t* lookup_table;  // those of all layer groups, one after the other
};

namespace internal {

absl::Status StepInputsCuda(const CudaContext& context, const StepInputsParams& params);

}  // namespace internal
}  // namespace quire::kernels
