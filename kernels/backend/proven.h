#pragma once

// Which devices the CUDA kernels of this build are known to be right on.

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/device.h"

namespace quire::kernels {

// No kernel has run on a GPU yet (docs/benchmarks/gpu_queue.md): the emulator of the tests, whose
// devices are named "emulated ...", is where they are proven so far. REQUIRES: a CUDA device.
inline bool AreKernelsProvenOn(const Device& device) {
  return absl::StartsWith(device.name, "emulated");
}

// Whether they may run on it: it is one of those, or QUIRE_UNPROVEN=1 is in the environment.
// REQUIRES: a CUDA device.
inline bool MayKernelsRunOn(const Device& device) {
  const char* const unproven = std::getenv("QUIRE_UNPROVEN");
  return AreKernelsProvenOn(device) || (unproven != nullptr && absl::string_view(unproven) == "1");
}

}  // namespace quire::kernels
