#pragma once

// Decides whether the CUDA kernels of this build may run on the present device.

#include <cstdlib>

#include "absl/strings/string_view.h"

// Defined only by the emulator of the tests (tests/cuda_emulator), which a program links instead of
// the CUDA runtime. The device name that a driver reports would not be reliable.
extern "C" [[gnu::weak]] bool QuireCudaIsEmulated();

namespace quire::kernels {

inline bool IsCudaEmulated() {
  return QuireCudaIsEmulated != nullptr && QuireCudaIsEmulated();
}

// Kernels are proven only on the emulator. An earlier state of the kernels passed the tests on an
// H100. The current store of products and the paired tile of 256 tokens have not been tested on a
// GPU (docs/benchmarks/gpu_queue.md).
inline bool AreKernelsProven() {
  return IsCudaEmulated();
}

// True if the kernels are proven or QUIRE_UNPROVEN=1 is in the environment.
inline bool MayKernelsRun() {
  const char* const unproven = std::getenv("QUIRE_UNPROVEN");
  return AreKernelsProven() || (unproven != nullptr && absl::string_view(unproven) == "1");
}

}  // namespace quire::kernels
