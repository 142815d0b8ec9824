#pragma once

// An order of work on one device. On the CPU every op is done when it returns, so a stream has
// nothing to wait for; the type exists so that callers are written for both.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"

namespace quire {

// Threads: one at a time. Lifetime: move-only; work enqueued on it has ended when it is destroyed.
class Stream {
 public:
  // Returns UNIMPLEMENTED for a CUDA device: this version has no CUDA backend.
  static absl::StatusOr<Stream> Create(const Device& device) {
    if (!device.is_cpu()) {
      return absl::UnimplementedError("streams of CUDA devices are not part of this version");
    }
    return Stream(device);
  }

  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;

  const Device& device() const { return device_; }

  // Waits until everything enqueued so far is done, and returns the first error of it.
  absl::Status Synchronize() { return absl::OkStatus(); }

 private:
  explicit Stream(const Device& device) : device_(device) {}

  Device device_;
};

}  // namespace quire
