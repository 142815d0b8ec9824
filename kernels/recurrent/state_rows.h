#pragma once

// The states of a recurrent layer in all slots, and the batch rows that read and write them.
//
// A slot is a range of bytes with the states of all layers. The state of this layer has the same
// offset in every slot. A row reads the state before its tokens and writes the state after them. On
// request it also writes a snapshot, the state after some of its tokens
// (cache_manager/views/state_step_inputs.h).

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "cache_manager/views/state_step_inputs.h"

namespace quire::kernels {

struct StateRows {
  std::byte* states;         // the layer's state in slot 0; f32
  std::int64_t slot_stride;  // bytes between consecutive slots
  cache::StateStepInputs slots;
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first token of each row, then the total
  const std::int32_t* positions;     // [num_tokens] position of each token in its sequence
  std::uint32_t batch_size;
  std::uint32_t num_tokens;  // number of tokens, including the padding tokens of a GPU
  // GPU only: [1 + batch_size] number of rows with tokens, then the indices of these rows. Launches
  // have max_live_rows() blocks in x.
  const std::uint32_t* live_rows = nullptr;

  std::uint32_t max_live_rows() const { return num_tokens < batch_size ? num_tokens : batch_size; }
  QUIRE_HOST_DEVICE std::uint32_t tokens_of(std::uint32_t row) const {
    return row_offsets[row + 1] - row_offsets[row];
  }

  // The following functions REQUIRE that the row has tokens.

  // Returns the state before the row's tokens, or null if it is zero.
  QUIRE_HOST_DEVICE const float* before(std::uint32_t row) const {
    return positions[row_offsets[row]] == 0 ? nullptr : At(slots.state_in[row]);
  }
  QUIRE_HOST_DEVICE float* after(std::uint32_t row) const { return At(slots.state_out[row]); }
  // Returns how many tokens of the row the snapshot includes, or 0 if the row writes no snapshot.
  QUIRE_HOST_DEVICE std::uint32_t snapshot_tokens(std::uint32_t row) const {
    const std::uint32_t at = slots.snapshot_at[row];
    return at == 0 ? 0 : at - static_cast<std::uint32_t>(positions[row_offsets[row]]);
  }
  QUIRE_HOST_DEVICE float* snapshot(std::uint32_t row) const {
    return At(slots.snapshot_slot[row]);
  }

 private:
  QUIRE_HOST_DEVICE float* At(std::uint32_t slot) const {
    return reinterpret_cast<float*>(states + std::int64_t{slot} * slot_stride);
  }
};

}  // namespace quire::kernels
