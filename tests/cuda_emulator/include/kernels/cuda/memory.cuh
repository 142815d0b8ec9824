#pragma once

// Host emulation of kernels/cuda/memory.cuh with the same names and contracts.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "tests/cuda_emulator/async_copy.h"

namespace quire::kernels::cuda {

inline uint4 LoadStreaming(const void* p) {
  cuda_emulator::CheckAligned(p, 16, "LoadStreaming");
  cuda_emulator::CheckGlobal(p, 16, "LoadStreaming");
  uint4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline std::uint32_t LoadAtL2(const std::uint32_t* p) {
  return *p;
}
inline float LoadAtL2(const float* p) {
  return *p;
}

inline void CpAsync16(void* shared, const void* global, bool valid = true) {
  cuda_emulator::IssueCopy(shared, global, 16, valid);
}
inline void CpAsync4(void* shared, const void* global, bool valid = true) {
  cuda_emulator::IssueCopy(shared, global, 4, valid);
}
inline void CpAsyncCommit() {
  cuda_emulator::CommitCopies();
}
template <int kPending>
void CpAsyncWait() {
  cuda_emulator::WaitCopies(kPending);
}

}  // namespace quire::kernels::cuda
