#pragma once

// A device holds memory and runs kernels: the CPU or one GPU.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A value type. Copies refer to the same device.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t ordinal = 0;
  // The following fields are 0 for the CPU.
  std::int32_t compute_capability = 0;  // 90 for 9.0
  std::int32_t driver_version = 0;  // newest CUDA version that the driver supports; 13000 for 13.0
  std::uint32_t num_sms = 0;
  std::int64_t memory_bytes = 0;
  std::string name = "cpu";

  static Device Cpu() { return Device{}; }
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
};

// Opens GPU `ordinal` for this process and makes it current for the calling thread. Never falls
// back to another device. Returns UNIMPLEMENTED in a build without CUDA. Returns
// FAILED_PRECONDITION if the driver is missing or has an older major version than this build's
// CUDA, if the device does not exist, or if its compute capability is below 8.0. The message states
// what was found and what is required. Other errors are those of CudaStatus.
absl::StatusOr<Device> OpenCudaDevice(std::int32_t ordinal);

// Makes the device current for the calling thread. Every thread must call this once before it
// allocates device memory or enqueues GPU work.
absl::Status UseDevice(const Device& device);

// Returns the number of bytes that can still be allocated. REQUIRES: a CUDA device.
absl::StatusOr<std::int64_t> FreeDeviceMemory(const Device& device);

// True if this build supports CUDA devices.
bool HasCuda();

}  // namespace quire
