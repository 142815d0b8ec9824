#pragma once

// Detects the last block of a launch to finish, which then processes the results of all blocks.

#include <cstdint>

#include "kernels/cuda/thread.cuh"

namespace quire::kernels::last_block {

// Records that this block has finished. In the last of `count` blocks, resets the counter to 0 and
// returns true. That block then sees the writes of all other blocks. `flag` is in shared memory and
// may be reused after the next barrier.
__device__ __forceinline__ bool ArrivesLast(std::uint32_t* counter, std::uint32_t count,
                                            std::uint32_t* flag) {
  // The thread that does the atomic also does the fences. The barrier before the first fence orders
  // the block's writes before that fence. The barrier after the second fence makes the writes that
  // the fence acquired visible to all threads. Fences in the other threads would have no effect,
  // because these threads do no atomic.
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
