#pragma once

// Whether the CUDA kernels of this build are known to be right where they would run.

#include <cstdlib>

#include "absl/strings/string_view.h"

// Defined by the emulator of the tests alone (tests/cuda_emulator), which a program links in place
// of the CUDA runtime: a device's name, which a driver gives, says nothing about that.
extern "C" [[gnu::weak]] bool QuireCudaIsEmulated();

namespace quire::kernels {

inline bool IsCudaEmulated() {
  return QuireCudaIsEmulated != nullptr && QuireCudaIsEmulated();
}

// The tests passed on an H100, of an earlier state: no GPU has compared the store of products as it
// is and the tile of 256 tokens in pairs yet (docs/benchmarks/gpu_queue.md). The emulator is where
// all kernels are proven.
inline bool AreKernelsProven() {
  return IsCudaEmulated();
}

// Whether they may run: they are proven, or QUIRE_UNPROVEN=1 is in the environment.
inline bool MayKernelsRun() {
  const char* const unproven = std::getenv("QUIRE_UNPROVEN");
  return AreKernelsProven() || (unproven != nullptr && absl::string_view(unproven) == "1");
}

}  // namespace quire::kernels
