#pragma once

// How the last block of a launch to arrive goes on with what the others wrote.

#include <cstdint>

#include "kernels/cuda/thread.cuh"

namespace quire::kernels::last_block {

// Counts the arrival of this block; true in the last of `count` to arrive, which then sees what the
// others wrote, and leaves the counter at 0. `flag` is shared memory, free for other use after the
// next barrier.
__device__ __forceinline__ bool ArrivesLast(std::uint32_t* counter, std::uint32_t count,
                                            std::uint32_t* flag) {
  // The fences are those of the thread that does the atomic: what the barrier orders before the
  // first is released with it, what the second acquires is passed on by the barrier behind. Fences
  // of all threads in front of the barrier would be followed by no atomic of theirs.
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
