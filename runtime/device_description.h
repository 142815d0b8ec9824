#pragma once

#include <string>

#include "base/device.h"

namespace quire::runtime {

// What clients are told about the device that computes the model.
struct DeviceDescription {
  Device device;
  std::string name;          // of the processor or the GPU
  std::string architecture;  // "avx512", or the compute capability "9.0"
  bool unproven_kernels = false;
};

}  // namespace quire::runtime
