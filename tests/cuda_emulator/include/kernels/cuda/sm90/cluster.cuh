#pragma once

// Host emulation of kernels/cuda/sm90/cluster.cuh with the same names and contracts. ClusterSync
// orders all accesses of its threads.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "tests/cuda_emulator/simt.h"

namespace quire::kernels::cuda {

inline void ClusterSync() {
  cuda_emulator::ArriveCluster();
  cuda_emulator::WaitCluster();
}
inline void BarrierArriveIn(std::uint32_t rank, Barrier* barrier) {
  cuda_emulator::ArriveBarrierIn(rank, barrier);
}
inline void TmaMulticast2D(void* shared, const CUtensorMap* map, Barrier* barrier, std::int32_t x,
                           std::int32_t y, std::uint16_t ranks) {
  const std::int32_t coordinates[] = {x, y};
  cuda_emulator::MulticastBox(shared, map, cuda_emulator::BarrierAddress(barrier), coordinates,
                              ranks);
}

}  // namespace quire::kernels::cuda
