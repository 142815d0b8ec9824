#pragma once

// CUDA streams and events, and their counterparts on the CPU. On the CPU every op has finished when
// it returns, so a CPU stream never waits. Callers treat both kinds of device alike.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"

struct CUstream_st;
struct CUevent_st;

namespace quire {

class Event;

// Threads: one at a time. Lifetime: move-only; the destructor waits for the enqueued work.
// Errors: those of CudaStatus.
class Stream {
 public:
  static absl::StatusOr<Stream> Create(const Device& device);

  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  const Device& device() const { return device_; }
  // Null on the CPU.
  CUstream_st* cuda() const { return stream_; }

  // Waits until all enqueued work is done. Returns its first error.
  absl::Status Synchronize() const;
  // Copies between host memory (pinned or pageable) and the device, or within the device. The
  // addresses determine the direction. The source must not change until the copy is done.
  absl::Status Copy(void* to, const void* from, std::int64_t bytes) const;
  absl::Status Zero(void* to, std::int64_t bytes) const;
  // Makes later work on this stream wait for `event`.
  absl::Status WaitFor(const Event& event) const;

 private:
  explicit Stream(const Device& device) : device_(device) {}

  Device device_;
  CUstream_st* stream_ = nullptr;
};

// A CUDA event. Threads and lifetime are as for Stream.
class Event {
 public:
  static absl::StatusOr<Event> Create(const Device& device);

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  CUevent_st* cuda() const { return event_; }
  // Records all work that is enqueued on `stream` so far.
  absl::Status Record(const Stream& stream);
  // Waits for the recorded work. Returns immediately if nothing was recorded.
  absl::Status Synchronize() const;
  absl::StatusOr<bool> IsDone() const;

 private:
  Event() = default;

  CUevent_st* event_ = nullptr;
};

}  // namespace quire
