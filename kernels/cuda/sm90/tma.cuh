#pragma once

// Copies by the tensor memory accelerator and by the bulk copy engine. One thread issues a copy. A
// Barrier in shared memory counts the bytes that have arrived. Parts of a box outside of the tensor
// are zero-filled, and their bytes are also counted.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/barrier.cuh"

namespace quire::kernels::cuda {

// L2 cache policy for the data that a copy reads.
enum class L2Hint : std::uint64_t {
  kNormal = 0x1000000000000000,
  kEvictFirst = 0x12F0000000000000,
  kEvictLast = 0x14F0000000000000,
};

__device__ __forceinline__ void TmaPrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads a box at (x, y, z), fastest extent first. The destination is 128-byte aligned (1024 for the
// 128-byte swizzle).
__device__ __forceinline__ void TmaLoad3D(void* shared, const CUtensorMap* map, Barrier* barrier,
                                          std::int32_t x, std::int32_t y, std::int32_t z,
                                          L2Hint hint) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const auto on = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(on), "r"(x), "r"(y), "r"(z), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}
__device__ __forceinline__ void TmaLoad2D(void* shared, const CUtensorMap* map, Barrier* barrier,
                                          std::int32_t x, std::int32_t y, L2Hint hint) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const auto on = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(on), "r"(x), "r"(y), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}
// Copies contiguous bytes. `bytes` is a multiple of 16, and both addresses are 16-byte aligned.
__device__ __forceinline__ void BulkLoad(void* shared, const void* global, std::uint32_t bytes,
                                         Barrier* barrier, L2Hint hint) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const auto on = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(global), "r"(bytes), "r"(on), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

}  // namespace quire::kernels::cuda
