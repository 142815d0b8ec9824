#pragma once

// The device that computes the model, opened according to the configuration.
//
// Place:      below ModelStack.
// Invariants: device.type cuda selects a GPU or returns an error. auto falls back to the CPU if no
//             GPU is usable, and logs the reason.
// Threads:    Open and SetActivations from one thread; then read-only.
// Lifetime:   must outlive model, pool and runner.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "runtime/cpu_check.h"
#include "runtime/device_description.h"
#include "runtime/runtime_options.h"

namespace quire::runtime {

class ComputeDevice {
 public:
  // If a GPU fails in a way that a restart may fix, the error has the reason DEVICE_ERROR. Errors
  // that only the operator can resolve carry no reason: a build without CUDA, a missing or too old
  // driver or GPU, and CPU instruction sets that failed their check.
  //
  // `cpu_check` is the result of CheckCpu for these options. Open selects the instruction set that
  // passed, even if the device is a GPU.
  static absl::StatusOr<std::unique_ptr<ComputeDevice>> Open(const DeviceOptions& options,
                                                             const CpuCheck& cpu_check);

  const kernels::Backend& backend() const { return *backend_; }
  // The threads that compute ops on the CPU and pack weights for either device.
  const ThreadPool& threads() const { return *threads_; }
  const Device& device() const { return backend_->device(); }
  bool is_cpu() const { return device().is_cpu(); }
  // Replaces the backend by one with these activations, which depend on the model. References to
  // the former backend become invalid. REQUIRES: is_cpu().
  absl::Status SetActivations(kernels::CpuActivations activations);
  DeviceDescription Describe() const;

 private:
  ComputeDevice() = default;

  // On failure, leaves stream_ and backend_ unset.
  absl::Status OpenCuda(const DeviceOptions& options);

  std::unique_ptr<ThreadPool> threads_;
  std::int32_t compute_capability_ = 0;  // of the GPU, 90 for 9.0
  std::optional<Stream> stream_;
  std::optional<kernels::Backend> backend_;
  SelfCheck self_check_;
};

// True if the device failed or was lost. False if the machine has no usable device.
bool IsDeviceError(const absl::Status& status);

// Returns the kind of device that Open would open. For auto, tries to open the GPU and returns the
// errors that would make Open fail. For cpu and cuda, checks nothing.
absl::StatusOr<DeviceKind> ChooseDevice(const DeviceOptions& options);

// Returns the number of compute threads: device.cpu.threads, or the machine's physical cores.
int NumThreads(const DeviceOptions& options);

// Selects device.cpu.isa for the CPU kernels of this process. Returns an error if that instruction
// set cannot be used or does not support device.cpu.activations.
absl::Status SelectIsa(const DeviceOptions& options);
// Selects the instruction set that passed the check. Returns check.status if none did.
absl::Status SelectCheckedIsa(const DeviceOptions& options, const CpuCheck& check);

}  // namespace quire::runtime
