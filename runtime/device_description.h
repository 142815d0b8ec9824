#pragma once

#include <string>

#include "base/device.h"

namespace quire::runtime {

// Describes the compute device in replies to clients.
struct DeviceDescription {
  Device device;
  std::string name;               // name of the processor or the GPU
  std::string architecture;       // "avx512", or the compute capability "9.0"
  std::string activations;        // kernels::CpuActivationsName in use; empty on a GPU
  bool unproven_kernels = false;  // kernels that were never tested on a GPU run on this device
};

}  // namespace quire::runtime
