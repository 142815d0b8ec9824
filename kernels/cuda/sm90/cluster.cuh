#pragma once

// Clusters: adjacent blocks along x (LaunchShape::cluster_x) that run at the same time. Each block
// accesses barriers and shared memory of the other blocks by their rank, BlockX() % cluster_x. A
// block must not exit while other blocks still access its shared memory.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"

namespace quire::kernels::cuda {

// Synchronizes all threads of the cluster. Other blocks then see barriers that were initialized
// before a BarrierInitFence, but no other writes. Publishing all writes would wait for device
// memory.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at the barrier of block `rank` that has the same offset as `barrier` has in the caller.
// `rank` may be the caller's rank. The caller's earlier reads are ordered before the arrival, but
// its writes are not published to other blocks.
__device__ __forceinline__ void BarrierArriveIn(std::uint32_t rank, Barrier* barrier) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(at),
      "r"(rank)
      : "memory");
}

// Loads like TmaLoad2D into every block whose bit is set in `ranks`. Destination and barrier have
// the same offsets in each block.
__device__ __forceinline__ void TmaMulticast2D(void* shared, const CUtensorMap* map,
                                               Barrier* barrier, std::int32_t x, std::int32_t y,
                                               std::uint16_t ranks) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const auto on = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(on), "r"(x), "r"(y), "h"(ranks)
      : "memory");
}

}  // namespace quire::kernels::cuda
