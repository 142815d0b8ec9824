#pragma once

// How long work on a GPU took, by the GPU's own clock: marks in its stream, without what the host
// needs to launch and to wait.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/stream.h"

struct CUevent_st;

namespace quire {

// Threads: one at a time. Lifetime: move-only; the stream outlives it.
class DeviceTimer {
 public:
  // Returns UNIMPLEMENTED for a stream of the CPU; what CudaStatus says otherwise.
  static absl::StatusOr<DeviceTimer> Create(const Stream& stream);

  DeviceTimer(DeviceTimer&& other) noexcept;
  DeviceTimer& operator=(DeviceTimer&& other) = delete;
  ~DeviceTimer();

  // Marks the beginning and the end of what is enqueued between the two.
  absl::Status Start();
  absl::Status Stop();
  // Waits for the end. REQUIRES: started and stopped.
  absl::StatusOr<absl::Duration> Elapsed() const;

 private:
  explicit DeviceTimer(const Stream& stream) : stream_(&stream) {}

  const Stream* stream_;
  CUevent_st* start_ = nullptr;
  CUevent_st* stop_ = nullptr;
};

}  // namespace quire
