#pragma once

// Prefix sums of counts in shared memory.

#include <cstdint>

#include "kernels/cuda/thread.cuh"

namespace quire::kernels::cuda {

// Replaces the n counts in `starts` by their exclusive prefix sums. starts[n] becomes the total.
// `scratch` has one entry per warp. All kThreads threads of the block must call it, after a barrier
// that follows the last write of a count. It ends with a barrier.
template <std::uint32_t kThreads>
__device__ void ScanCounts(std::uint32_t* starts, std::uint32_t n, std::uint32_t* scratch) {
  const std::uint32_t thread = ThreadIndex();
  const std::uint32_t warp = thread / kWarpSize;
  const std::uint32_t lane = Lane();
  const std::uint32_t chunk = (n + kThreads - 1) / kThreads;
  const std::uint32_t begin = thread * chunk < n ? thread * chunk : n;
  const std::uint32_t end = begin + chunk < n ? begin + chunk : n;
  std::uint32_t own = 0;
  for (std::uint32_t i = begin; i < end; ++i) own += starts[i];
  std::uint32_t inclusive = own;
  for (std::uint32_t delta = 1; delta < kWarpSize; delta *= 2) {
    const std::uint32_t before = ShuffleUp(inclusive, delta);
    if (lane >= delta) inclusive += before;
  }
  if (lane == kWarpSize - 1) scratch[warp] = inclusive;
  SyncBlock();
  std::uint32_t sum = inclusive - own;
  for (std::uint32_t w = 0; w < warp; ++w) sum += scratch[w];
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t count = starts[i];
    starts[i] = sum;
    sum += count;
  }
  if (thread == kThreads - 1) starts[n] = sum;
  SyncBlock();
}

}  // namespace quire::kernels::cuda
