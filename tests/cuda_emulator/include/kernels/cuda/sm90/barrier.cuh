#pragma once

// Host emulation of kernels/cuda/sm90/barrier.cuh with the same names and contracts.

#include <cuda_runtime.h>

#include <cstdint>

#include "tests/cuda_emulator/async_copy.h"
#include "tests/cuda_emulator/barrier.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::kernels::cuda {

struct alignas(8) Barrier {
  std::uint64_t state;
};

inline void BarrierInit(Barrier* barrier, std::uint32_t arrivals) {
  cuda_emulator::InitBarrier(barrier, arrivals);
}
inline void BarrierInitFence() {
  cuda_emulator::FenceAsyncProxy();
}
inline void BarrierArrive(Barrier* barrier) {
  cuda_emulator::ArriveBarrier(barrier, 0);
}
inline void BarrierExpect(Barrier* barrier, std::uint32_t bytes) {
  cuda_emulator::ArriveBarrier(barrier, bytes);
}
inline void BarrierArriveAfterCpAsync(Barrier* barrier) {
  cuda_emulator::ArriveAfterCopies(barrier);
}
inline void BarrierWait(Barrier* barrier, std::uint32_t parity) {
  cuda_emulator::WaitBarrier(barrier, parity);
}
inline void FenceAsyncShared() {
  cuda_emulator::FenceAsyncProxy();
}

template <int kRegisters>
void RaiseRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void LowerRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

}  // namespace quire::kernels::cuda
