#pragma once

// One place where memory lives and kernels run: the CPU or one GPU.

#include <cstdint>
#include <string>

namespace quire {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A value; copies name the same device. The CPU is the only kind that this version opens.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t ordinal = 0;
  // CUDA only: 90 for compute capability 9.0; 0 on the CPU.
  std::int32_t compute_capability = 0;
  std::string name = "cpu";

  static Device Cpu() { return Device{}; }
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
};

}  // namespace quire
