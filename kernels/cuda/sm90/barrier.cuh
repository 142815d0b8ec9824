#pragma once

// Wrappers of mbarrier, which counts arrivals of threads and bytes of bulk copies, per phase. A
// barrier starts in phase 0. BarrierWait(b, p) returns when the phase with parity p is complete. A
// first wait with parity 1, as on an "empty" barrier of a pipeline, therefore returns immediately.

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::kernels::cuda {

// A barrier in shared memory.
struct alignas(8) Barrier {
  std::uint64_t state;
};

__device__ __forceinline__ void BarrierInit(Barrier* barrier, std::uint32_t arrivals) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes the initial state visible to bulk copies. SyncBlock must follow.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(Barrier* barrier) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives once and adds `bytes` to the number of bytes that this phase expects.
__device__ __forceinline__ void BarrierExpect(Barrier* barrier, std::uint32_t bytes) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// Arrives when all earlier cp.async copies of the calling thread are complete. This counts as one
// of the barrier's expected arrivals.
__device__ __forceinline__ void BarrierArriveAfterCpAsync(Barrier* barrier) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void BarrierWait(Barrier* barrier, std::uint32_t parity) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "QUIRE_RETRY_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra QUIRE_DONE_%=;\n"
      "bra QUIRE_RETRY_%=;\n"
      "QUIRE_DONE_%=:\n"
      "}" ::"r"(at),
      "r"(parity)
      : "memory");
}
// Makes ordinary writes of this thread to shared memory visible to bulk copies and wgmma. A barrier
// between writing and reading threads must follow.
__device__ __forceinline__ void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Changes the number of registers of a warpgroup. All warps of the warpgroup must call the
// function.
template <int kRegisters>
__device__ __forceinline__ void RaiseRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void LowerRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace quire::kernels::cuda
