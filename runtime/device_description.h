#pragma once

#include <string>

#include "base/device.h"

namespace quire::runtime {

// The description of the compute device that clients get.
struct DeviceDescription {
  Device device;
  std::string name;          // name of the processor or the GPU
  std::string architecture;  // "avx512", or the compute capability "9.0"
  std::string activations;   // kernels::CpuActivationsName in use; empty on a GPU
  bool unproven_kernels = false;
};

}  // namespace quire::runtime
