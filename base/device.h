#pragma once

// One place where memory lives and kernels run: the CPU or one GPU.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A value; copies name the same device.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t ordinal = 0;
  // CUDA only from here on; 0 on the CPU.
  std::int32_t compute_capability = 0;  // 90 for 9.0
  std::int32_t driver_version = 0;      // 13000 for 13.0: the newest CUDA that the driver knows
  std::uint32_t num_sms = 0;
  std::int64_t memory_bytes = 0;
  std::string name = "cpu";

  static Device Cpu() { return Device{}; }
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
};

// Opens GPU `ordinal` for this process and makes it current for the calling thread. Never another
// device, never the CPU. Returns UNIMPLEMENTED in a build without CUDA; FAILED_PRECONDITION, with
// the numbers, without a driver, with a driver older than this build's CUDA, without such a device,
// or below compute capability 8.0; what CudaStatus says otherwise.
absl::StatusOr<Device> OpenCudaDevice(std::int32_t ordinal);

// Makes the device current for the calling thread: every thread that allocates or enqueues calls it
// once.
absl::Status UseDevice(const Device& device);

// Bytes that can still be allocated. REQUIRES: a CUDA device.
absl::StatusOr<std::int64_t> FreeDeviceMemory(const Device& device);

// Whether this build can open GPUs.
bool HasCuda();

}  // namespace quire
