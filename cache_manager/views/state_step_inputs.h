#pragma once

// The state slots that the recurrent layers of a step read and write.
//
// A slot has the states of all recurrent layers after some number of tokens: one contiguous run of
// bytes, whose layout the model defines. Slot 0 is the null slot: its bytes are zero, and it is
// never written.

#include <cstdint>

namespace quire::cache {

// The cache manager owns the arrays, whose addresses are fixed for the life of the process. Entries
// of rows that the step does not schedule are 0.
struct StateStepInputs {
  // [max_rows] the slot with the state after the row's cached tokens. Ignored if the row has no
  // cached tokens: the state is then zero.
  const std::uint32_t* state_in = nullptr;
  // [max_rows] the slot that receives the state after the row's new tokens. It may equal state_in.
  // If it does not, the slot state_in may be shared and is not written.
  const std::uint32_t* state_out = nullptr;
  // [max_rows] The state after the first snapshot_at[b] tokens of the row is also written to slot
  // snapshot_slot[b]. If the row has c cached and n new tokens, c < snapshot_at[b] <= c + n. If
  // snapshot_at[b] is 0, no snapshot is written.
  const std::uint32_t* snapshot_at = nullptr;
  const std::uint32_t* snapshot_slot = nullptr;
  std::uint32_t max_rows = 0;  // 0: the model has no recurrent layers
};

}  // namespace quire::cache
