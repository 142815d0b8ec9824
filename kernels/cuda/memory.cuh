#pragma once

// Loads with cache hints, and cp.async copies from global to shared memory.

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::kernels::cuda {

// Loads 16 bytes that are read only once: they are not cached in L1 and are evicted first from L2.
// `p` is 16-byte aligned.
__device__ __forceinline__ uint4 LoadStreaming(const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy;\n"
      "ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy;\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p)
      : "memory");
  return v;
}
// Loads a value that another block wrote in this launch, bypassing L1.
__device__ __forceinline__ std::uint32_t LoadAtL2(const std::uint32_t* p) {
  return __ldcg(p);
}
__device__ __forceinline__ float LoadAtL2(const float* p) {
  return __ldcg(p);
}

// CpAsync16 copies 16 bytes to shared memory, CpAsync4 4 bytes. Both addresses are aligned to the
// size. If `valid` is false, the destination is zero-filled and `global` is not read, but must
// still be a valid address.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CpAsync4(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}
// Closes the current group of cp.async copies of the calling thread.
__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` groups of the calling thread are pending. Other threads see the
// data after a barrier.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace quire::kernels::cuda
