#pragma once

// Shared helpers of the emulator's own tests: a stream, arrays on the emulated device, and a launch
// that waits.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "tests/cuda_emulator/emulator.h"

namespace quire::cuda_emulator {

// n elements of device memory, which host code may access here (EmulatorOptions::host_may_touch).
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) {
    auto buffer =
        DeviceBuffer::Allocate(MemoryKind::kDevice, static_cast<std::int64_t>(n * sizeof(T)));
    if (!buffer.ok()) std::abort();
    buffer_ = *std::move(buffer);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() const { return static_cast<T*>(buffer_.data()); }
  T& operator[](std::size_t i) const { return data()[i]; }
  std::size_t size() const { return n_; }

 private:
  std::size_t n_;
  DeviceBuffer buffer_;
};

class KernelTest : public ::testing::Test {
 protected:
  KernelTest() {
    StartAnew();
    device_ = OpenCudaDevice(0).value();
    stream_.emplace(Stream::Create(device_).value());
    context_ = {.stream = &*stream_, .kernels = &kernels_, .num_sms = 4, .compute_capability = 90};
  }

  // Every launch is checked, and the test may access DeviceArray directly.
  void StartAnew() {
    Reset();
    EmulatorOptions options = GetOptions();
    options.host_may_touch = true;
    options.check = CheckedLaunches::kAll;
    SetOptions(options);
  }

  void UseSeed(std::uint64_t seed) {
    EmulatorOptions options = GetOptions();
    options.seed = seed;
    SetOptions(options);
  }

  // For kernels that contain errors which the access check would find first (access_test.cc).
  void CheckNoAccess() {
    EmulatorOptions options = GetOptions();
    options.check = CheckedLaunches::kNone;
    SetOptions(options);
  }

  // Runs kernel(args...) and waits for it.
  template <typename... P, typename... A>
  void Run(void (*kernel)(P...), const kernels::cuda::LaunchShape& shape, A&&... args) {
    const absl::Status launched =
        kernels::cuda::Launch(context_, "test_kernel", kernel, shape, static_cast<A&&>(args)...);
    ASSERT_TRUE(launched.ok()) << launched;
    const absl::Status done = stream_->Synchronize();
    ASSERT_TRUE(done.ok()) << done;
  }

  Device device_;
  std::optional<Stream> stream_;
  kernels::cuda::LoadedKernels kernels_;
  kernels::CudaContext context_;
};

}  // namespace quire::cuda_emulator
