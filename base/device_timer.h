#pragma once

// Measures GPU work with CUDA events, which exclude launch overhead and waiting on the host.
// Builds without CUDA have no implementation.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/stream.h"

struct CUevent_st;

namespace quire {

// Threads: one at a time. Lifetime: move-only; the stream outlives it.
class DeviceTimer {
 public:
  // Returns UNIMPLEMENTED for a CPU stream. Other errors are those of CudaStatus.
  static absl::StatusOr<DeviceTimer> Create(const Stream& stream);

  DeviceTimer(DeviceTimer&& other) noexcept;
  DeviceTimer& operator=(DeviceTimer&& other) = delete;
  ~DeviceTimer();

  // Record the start and the end of the measured work in the stream.
  absl::Status Start();
  absl::Status Stop();
  // Waits for the end of the measured work and returns its time. REQUIRES: started and stopped.
  absl::StatusOr<absl::Duration> Elapsed() const;

 private:
  explicit DeviceTimer(const Stream& stream) : stream_(&stream) {}

  const Stream* stream_;
  CUevent_st* start_ = nullptr;
  CUevent_st* stop_ = nullptr;
};

}  // namespace quire
