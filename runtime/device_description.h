#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/device.h"

namespace quire::runtime {

// The comparison of the device's kernels with their references at start.
struct SelfCheck {
  int checks = 0;                           // kernels and shapes that passed
  absl::Duration time;                      // total of all checks, including those that failed
  std::vector<std::string> skipped_levels;  // CPU instruction sets that failed
};

// Describes the compute device in replies to clients.
struct DeviceDescription {
  Device device;
  std::string name;          // name of the processor or the GPU
  std::string architecture;  // "avx512", or the compute capability "9.0"
  std::string activations;   // kernels::CpuActivationsName in use; empty on a GPU
  SelfCheck self_check;
};

}  // namespace quire::runtime
