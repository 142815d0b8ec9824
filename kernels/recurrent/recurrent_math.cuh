#pragma once

// Device functions of the recurrent kernels: the row of a block, and gates that give the same bits
// as the CPU's vector form with fused multiply-add.

#include <cstdint>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/recurrent/state_rows.h"

namespace quire::kernels::cuda {

// The batch row that a block processes, its tokens and its states.
struct RowOfBlock {
  std::uint32_t first = 0;        // the row's first token
  std::uint32_t tokens = 0;       // 0: the block has nothing to do
  std::uint32_t snapshot = 0;     // number of tokens in the snapshot; 0: none
  const float* before = nullptr;  // null: zero
  float* after = nullptr;         // null: not written, because the row writes the null slot
  float* snapshot_to = nullptr;

  // REQUIRES: the launch has rows.max_live_rows() blocks in x.
  __device__ __forceinline__ explicit RowOfBlock(const StateRows& rows) {
    if (BlockX() >= rows.live_rows[0]) return;
    const std::uint32_t row = rows.live_rows[1 + BlockX()];
    first = rows.row_offsets[row];
    tokens = rows.tokens_of(row);
    if (tokens == 0) return;
    snapshot = rows.snapshot_tokens(row);
    before = rows.before(row);
    if (rows.slots.state_out[row] != 0) after = rows.after(row);
    if (snapshot != 0) snapshot_to = rows.snapshot(row);
  }
};

// Returns 1 / (1 + e^-x).
__device__ __forceinline__ float Sigmoid(float x) {
  return Div(1.0f, Add(1.0f, ExactExp(-x)));
}

// Returns x / (1 + e^-x).
__device__ __forceinline__ float Silu(float x) {
  return Div(x, Add(1.0f, ExactExp(-x)));
}

// Returns ln(1 + e^x) within 4 units in the last place, by the series of recurrent_math-inl.h.
__device__ __forceinline__ float Softplus(float x) {
  const float u = ExactExp(-fabsf(x));
  const float s = Div(u, Add(2.0f, u));
  const float z = Mul(s, s);
  float p = 1.0f / 17;
  p = Fma(p, z, 1.0f / 15);
  p = Fma(p, z, 1.0f / 13);
  p = Fma(p, z, 1.0f / 11);
  p = Fma(p, z, 1.0f / 9);
  p = Fma(p, z, 1.0f / 7);
  p = Fma(p, z, 1.0f / 5);
  p = Fma(p, z, 1.0f / 3);
  const float twice = Add(s, s);
  const float log = Fma(Mul(twice, z), p, twice);
  return Add(log, Max(x, 0.0f));
}

// Returns the sum over a warp, with the same bits in every lane.
__device__ __forceinline__ float WarpSum(float sum) {
#pragma unroll
  for (std::uint32_t mask = kWarpSize / 2; mask > 0; mask /= 2) {
    sum = Add(sum, ShuffleXor(sum, mask));
  }
  return sum;
}

}  // namespace quire::kernels::cuda
