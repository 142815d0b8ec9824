#pragma once

// Which devices the CUDA kernels of this build are known to be right on.

#include "absl/strings/match.h"
#include "base/device.h"

namespace quire::kernels {

// No kernel has run on a GPU yet (docs/benchmarks/gpu_queue.md): the emulator of the tests, whose
// devices are named "emulated ...", is where they are proven so far. REQUIRES: a CUDA device.
inline bool AreKernelsProvenOn(const Device& device) {
  return absl::StartsWith(device.name, "emulated");
}

}  // namespace quire::kernels
