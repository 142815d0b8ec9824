#pragma once

// Lets the last block of a launch to finish continue with the results of the others.

#include <cstdint>

#include "kernels/cuda/thread.cuh"

namespace quire::kernels::last_block {

// Counts the arrival of this block. Returns true in the last of `count` blocks, which then sees the
// writes of the others, and resets the counter to 0. `flag` is in shared memory and may be reused
// after the next barrier.
__device__ __forceinline__ bool ArrivesLast(std::uint32_t* counter, std::uint32_t count,
                                            std::uint32_t* flag) {
  // The thread that does the atomic also does the fences. The barrier in front orders the block's
  // writes before the first fence, and the barrier behind passes on what the second fence acquires.
  // Fences of all threads before the barrier would not be followed by an atomic of the same thread.
  cuda::SyncBlock();
  if (cuda::ThreadIndex() == 0) {
    cuda::DeviceFence();
    *flag = cuda::AtomicAdd(counter, 1u);
    cuda::DeviceFence();
  }
  cuda::SyncBlock();
  if (*flag + 1 != count) return false;
  if (cuda::ThreadIndex() == 0) *counter = 0;
  return true;
}

}  // namespace quire::kernels::last_block
