#pragma once

// The device that computes, opened as the configuration asks.
//
// Place:      below ModelStack.
// Invariants: device.type cuda gives a GPU or an error, never the CPU; auto falls to the CPU only
//             when no GPU is usable or its kernels are not proven, and says why in the log.
// Threads:    Open from one thread; then read-only.
// Lifetime:   outlives model, pool and runner.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "runtime/device_description.h"
#include "runtime/runtime_options.h"

namespace quire::runtime {

class ComputeDevice {
 public:
  // Errors of opening a GPU carry the reason DEVICE_ERROR. Those of a build without CUDA or of
  // kernels that are not proven do not: they are the operator's to change.
  static absl::StatusOr<std::unique_ptr<ComputeDevice>> Open(const DeviceOptions& options);

  const kernels::Backend& backend() const { return *backend_; }
  // Where ops are computed on the CPU, and weights prepared for either device.
  const ThreadPool& threads() const { return *threads_; }
  const Device& device() const { return backend_->device(); }
  bool is_cpu() const { return device().is_cpu(); }
  DeviceDescription Describe() const;

 private:
  ComputeDevice() = default;

  // Leaves nothing behind when it fails.
  absl::Status OpenCuda(const DeviceOptions& options);

  std::unique_ptr<ThreadPool> threads_;
  std::optional<Stream> stream_;
  std::optional<kernels::Backend> backend_;
};

// Whether a device is what the error is about: it cannot be opened, or it was lost.
bool IsDeviceError(const absl::Status& status);

// The kind of device that Open would open, without opening it: device.type, or of auto what this
// machine has. Errors as Open.
absl::StatusOr<DeviceKind> ChooseDevice(const DeviceOptions& options);

// Makes the CPU kernels of this process run with device.cpu.isa, or says why not.
absl::Status SelectIsa(const DeviceOptions& options);

}  // namespace quire::runtime
