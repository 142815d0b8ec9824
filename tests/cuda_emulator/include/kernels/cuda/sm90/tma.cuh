#pragma once

// Host emulation of kernels/cuda/sm90/tma.cuh with the same names and contracts.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"
#include "tests/cuda_emulator/tensor_map.h"

namespace quire::kernels::cuda {

enum class L2Hint : std::uint64_t {
  kNormal = 0x1000000000000000,
  kEvictFirst = 0x12F0000000000000,
  kEvictLast = 0x14F0000000000000,
};

inline void TmaPrefetchMap(const CUtensorMap*) {}

inline void TmaLoad3D(void* shared, const CUtensorMap* map, Barrier* barrier, std::int32_t x,
                      std::int32_t y, std::int32_t z, L2Hint) {
  const std::int32_t coordinates[] = {x, y, z};
  cuda_emulator::LoadBox(shared, map, cuda_emulator::BarrierAddress(barrier), 3, coordinates);
}
inline void TmaLoad2D(void* shared, const CUtensorMap* map, Barrier* barrier, std::int32_t x,
                      std::int32_t y, L2Hint) {
  const std::int32_t coordinates[] = {x, y};
  cuda_emulator::LoadBox(shared, map, cuda_emulator::BarrierAddress(barrier), 2, coordinates);
}
inline void BulkLoad(void* shared, const void* global, std::uint32_t bytes, Barrier* barrier,
                     L2Hint) {
  cuda_emulator::LoadBytes(shared, global, bytes, cuda_emulator::BarrierAddress(barrier));
}

}  // namespace quire::kernels::cuda
