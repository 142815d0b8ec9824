#pragma once

// Shared helpers of the CUDA op tests: a backend on the emulated device, and arrays in its memory.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/backend/backend.h"
#include "tests/cuda_emulator/emulator.h"

namespace quire::kernels {

// An emulated device with a stream and a backend. Threads and copies run in the order of `seed`.
class EmulatedBackend {
 public:
  explicit EmulatedBackend(std::uint64_t seed = 1)
      : pool_(1),
        device_(Open(seed)),
        stream_(std::make_unique<Stream>(*Stream::Create(device_))),
        backend_(*Backend::CreateCuda(*stream_, Determinism::kBatchInvariant, &pool_)) {}

  const Backend& operator*() const { return backend_; }
  const Stream& stream() const { return *stream_; }
  void Wait() const {
    const absl::Status status = stream_->Synchronize();
    ASSERT_TRUE(status.ok()) << status;
  }

 private:
  static Device Open(std::uint64_t seed) {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.seed = seed;
    cuda_emulator::SetOptions(options);
    return *OpenCudaDevice(0);
  }

  ThreadPool pool_;
  Device device_;
  std::unique_ptr<Stream> stream_;
  Backend backend_;
};

// An array in device memory. Every byte is 0xff (NaN in each float type) until Put.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const EmulatedBackend& cuda, std::size_t count)
      : cuda_(cuda),
        count_(count),
        buffer_(*DeviceBuffer::Allocate(MemoryKind::kDevice,
                                        static_cast<std::int64_t>(count * sizeof(T)))) {
    const std::vector<std::byte> poison(count * sizeof(T), std::byte{0xff});
    PutBytes(poison.data());
  }
  DeviceArray(const EmulatedBackend& cuda, const std::vector<T>& values)
      : DeviceArray(cuda, values.size()) {
    Put(values);
  }

  T* data() const { return static_cast<T*>(buffer_.data()); }
  void Put(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), count_);
    PutBytes(values.data());
  }
  // Waits for the stream and returns the values.
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    EXPECT_TRUE(cuda_.stream()
                    .Copy(values.data(), buffer_.data(), static_cast<std::int64_t>(bytes()))
                    .ok());
    cuda_.Wait();
    return values;
  }

 private:
  std::size_t bytes() const { return count_ * sizeof(T); }
  void PutBytes(const void* from) {
    ASSERT_TRUE(cuda_.stream().Copy(buffer_.data(), from, static_cast<std::int64_t>(bytes())).ok());
    cuda_.Wait();
  }

  const EmulatedBackend& cuda_;
  std::size_t count_;
  DeviceBuffer buffer_;
};

}  // namespace quire::kernels
