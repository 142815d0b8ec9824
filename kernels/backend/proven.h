#pragma once

// Whether the CUDA kernels of this build are known to be right where they would run.

#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"

// Defined by the emulator of the tests alone (tests/cuda_emulator), which a program links in place
// of the CUDA runtime: a device's name, which a driver gives, says nothing about that.
extern "C" [[gnu::weak]] bool QuireCudaIsEmulated();

namespace quire::kernels {

inline bool IsCudaEmulated() {
  return QuireCudaIsEmulated != nullptr && QuireCudaIsEmulated();
}

// Compute capability 9.0: all tests of kernels and models passed on an H100
// (docs/benchmarks/2026-11-27-nvidia-h100-80gb-hbm3.json); what changed since is in gpu_queue.md
// there. Others run the machine code of 8.0 or its PTX, which only the emulator has run so far.
inline bool AreKernelsProven(std::int32_t compute_capability) {
  return compute_capability == 90 || IsCudaEmulated();
}

// Whether they may run: they are proven, or QUIRE_UNPROVEN=1 is in the environment.
inline bool MayKernelsRun(std::int32_t compute_capability) {
  const char* const unproven = std::getenv("QUIRE_UNPROVEN");
  return AreKernelsProven(compute_capability) ||
         (unproven != nullptr && absl::string_view(unproven) == "1");
}

}  // namespace quire::kernels
