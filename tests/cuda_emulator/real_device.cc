// Implements emulator.h for the same tests on a real GPU. Options report the GPU's properties, and
// changes have no effect. A test that injects faults or counts launches calls IsEmulated() first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "base/device.h"
#include "tests/cuda_emulator/emulator.h"

namespace quire::cuda_emulator {

bool IsEmulated() {
  return false;
}

EmulatorOptions GetOptions() {
  EmulatorOptions options;
  if (const absl::StatusOr<Device> device = OpenCudaDevice(0); device.ok()) {
    options.compute_capability = device->compute_capability;
    options.num_sms = static_cast<int>(device->num_sms);
    options.driver_version = device->driver_version;
    options.memory_bytes = static_cast<std::uint64_t>(device->memory_bytes);
  }
  return options;
}
void SetOptions(const EmulatorOptions& /*options*/) {}
void InjectFault(const Fault& fault) {
  ADD_FAILURE() << "a fault at " << fault.where << " can be injected into the emulator only";
}
std::uint64_t LaunchCount(const std::string& /*kernel*/) {
  return 0;
}
std::uint64_t LaunchCount() {
  return 0;
}
std::map<std::string, std::uint64_t> LaunchCounts() {
  return {};
}
std::uint64_t BlockCount(const std::string& /*kernel*/) {
  return 0;
}
std::uint64_t CollectiveCount() {
  return 0;
}
std::uint64_t QueuedOperations() {
  return 0;
}
std::uint64_t DeviceBytesAllocated() {
  return 0;
}
std::uint64_t AllocationCount() {
  return 0;
}
std::uint64_t CaptureCount() {
  return 0;
}
std::uint64_t FunctionCallCount() {
  return 0;
}
std::uint64_t TensorMapCount() {
  return 0;
}
std::uint64_t PinnedBytesEverAllocated() {
  return 0;
}
void Reset() {}

}  // namespace quire::cuda_emulator

// CTest treats 77 as skipped.
int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const absl::StatusOr<quire::Device> device = quire::OpenCudaDevice(0);
  if (!device.ok()) {
    std::printf("skipped, no GPU: %s\n", device.status().ToString().c_str());
    return 77;
  }
  std::printf("on %s\n", device->name.c_str());
  return RUN_ALL_TESTS();
}
