#pragma once

// Thread indices and synchronization. This header and the others of this folder wrap the CUDA
// builtins, so that the same kernel source also runs in the emulator (tests/cuda_emulator). Kernels
// use only these wrappers: no builtin variables, no asm and no static __shared__ arrays. Blocks are
// one-dimensional.

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::kernels::cuda {

inline constexpr std::uint32_t kWarpSize = 32;
inline constexpr std::uint32_t kFullMask = 0xffffffffu;

__device__ __forceinline__ std::uint32_t ThreadIndex() {
  return threadIdx.x;
}
__device__ __forceinline__ std::uint32_t BlockThreads() {
  return blockDim.x;
}
__device__ __forceinline__ std::uint32_t BlockX() {
  return blockIdx.x;
}
__device__ __forceinline__ std::uint32_t BlockY() {
  return blockIdx.y;
}
__device__ __forceinline__ std::uint32_t GridX() {
  return gridDim.x;
}
__device__ __forceinline__ std::uint32_t GridY() {
  return gridDim.y;
}
__device__ __forceinline__ std::uint32_t Lane() {
  return threadIdx.x % kWarpSize;
}
// Returns the index of the warp in the block. The shuffle tells the compiler that all lanes of a
// warp have the same value.
__device__ __forceinline__ std::uint32_t Warp() {
  return __shfl_sync(kFullMask, threadIdx.x / kWarpSize, 0);
}

// Returns the dynamic shared memory of the block, aligned to 1024 bytes. The launch must reserve
// kSharedAlignment bytes more than the kernel needs.
inline constexpr std::uint32_t kSharedAlignment = 1024;
__device__ __forceinline__ std::byte* SharedMemory() {
  extern __shared__ __align__(16) std::byte quire_shared_memory[];
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(quire_shared_memory));
  return quire_shared_memory + ((kSharedAlignment - address % kSharedAlignment) % kSharedAlignment);
}
// Returns the dynamic shared memory of the block, aligned to 16 bytes only.
__device__ __forceinline__ std::byte* SharedMemory16() {
  extern __shared__ __align__(16) std::byte quire_shared_memory[];
  return quire_shared_memory;
}

__device__ __forceinline__ void SyncBlock() {
  __syncthreads();
}
__device__ __forceinline__ void SyncWarp(std::uint32_t mask = kFullMask) {
  __syncwarp(mask);
}
// Named barriers 1 to 15 (SyncBlock uses 0) for `threads` threads, a multiple of 32. NamedSync
// waits for all of these threads. NamedArrive counts the caller without waiting.
__device__ __forceinline__ void NamedSync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedArrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// All lanes of `mask` must call the following functions together. T has 4 or 8 bytes.
template <typename T>
__device__ __forceinline__ T ShuffleXor(T value, std::uint32_t lane_mask,
                                        std::uint32_t mask = kFullMask) {
  return __shfl_xor_sync(mask, value, static_cast<int>(lane_mask));
}
template <typename T>
__device__ __forceinline__ T Shuffle(T value, std::uint32_t lane, std::uint32_t mask = kFullMask) {
  return __shfl_sync(mask, value, static_cast<int>(lane));
}
template <typename T>
__device__ __forceinline__ T ShuffleUp(T value, std::uint32_t delta,
                                       std::uint32_t mask = kFullMask) {
  return __shfl_up_sync(mask, value, delta);
}
__device__ __forceinline__ std::uint32_t Ballot(bool value, std::uint32_t mask = kFullMask) {
  return __ballot_sync(mask, value ? 1 : 0);
}
__device__ __forceinline__ bool AnyLane(bool value) {
  return __any_sync(kFullMask, value ? 1 : 0) != 0;
}

// Relaxed atomics on global or shared memory. Each returns the previous value.
__device__ __forceinline__ std::uint32_t AtomicAdd(std::uint32_t* p, std::uint32_t x) {
  return atomicAdd(p, x);
}
__device__ __forceinline__ std::uint64_t AtomicAdd(std::uint64_t* p, std::uint64_t x) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(x));
}
__device__ __forceinline__ std::uint32_t AtomicMax(std::uint32_t* p, std::uint32_t x) {
  return atomicMax(p, x);
}
__device__ __forceinline__ std::uint64_t AtomicMax(std::uint64_t* p, std::uint64_t x) {
  return atomicMax(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(x));
}
__device__ __forceinline__ std::uint64_t AtomicMin(std::uint64_t* p, std::uint64_t x) {
  return atomicMin(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(x));
}
__device__ __forceinline__ std::uint32_t AtomicOr(std::uint32_t* p, std::uint32_t x) {
  return atomicOr(p, x);
}
// Makes a following relaxed atomic a release, and a preceding relaxed atomic an acquire, for all
// threads of the device. __threadfence is a sequentially consistent fence, which takes longer.
__device__ __forceinline__ void DeviceFence() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// Programmatic dependent launch. After DependencyWait all writes of the preceding kernel are
// visible. DependencyLaunch allows the next kernel to start. Both do nothing for an ordinary launch
// and below compute capability 9.0.
__device__ __forceinline__ void DependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void DependencyLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace quire::kernels::cuda
