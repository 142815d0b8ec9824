#pragma once

// A ring of stages in shared memory that a producer fills and consumers release.

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"

namespace quire::kernels::cuda {

// The barriers of the stages, located in shared memory.
template <std::uint32_t kStages>
struct PipelineBarriers {
  Barrier full[kStages];
  Barrier empty[kStages];

  // One thread calls Init. BarrierInitFence and SyncBlock must follow.
  __device__ __forceinline__ void Init(std::uint32_t full_arrivals, std::uint32_t empty_arrivals) {
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      BarrierInit(&full[stage], full_arrivals);
      BarrierInit(&empty[stage], empty_arrivals);
    }
  }
};

// Position of a thread in the ring: the stage of the next tile and the parity of its phase.
// Consumers wait for full[stage] with `parity`, producers for empty[stage] with `parity ^ 1`.
template <std::uint32_t kStages>
struct PipelineCursor {
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if constexpr (kStages == 2) {
      stage ^= 1;
    } else {
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    parity ^= stage == 0 ? 1 : 0;
  }
};

}  // namespace quire::kernels::cuda
