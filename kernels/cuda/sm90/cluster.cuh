#pragma once

// Clusters: neighbouring blocks along x (LaunchShape::cluster_x) that run at the same time, each of
// which reaches barriers and shared memory of the others by its rank, BlockX() % cluster_x. A block
// does not end before the others are done with it: arrivals and copies need a block that runs.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"

namespace quire::kernels::cuda {

// All threads of the cluster meet. Of what they wrote only barriers in front of a BarrierInitFence
// are seen by the other blocks: a release of all writes would wait for the memory of the device.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// BarrierArrive on the barrier of the block of this rank that lies where `barrier` lies in the
// caller's, which may be that block. The caller's reads before are over, its writes are not
// published to other blocks.
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

// TmaLoad2D to every block whose rank is a bit of `ranks`: at the same place in each, counted on
// the barrier at the same place in each.
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
