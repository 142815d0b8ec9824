#pragma once

// An order of work on one device, and marks in it. On the CPU every op is done when it returns, so
// there is nothing to wait for; the types exist so that callers are written for both.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"

struct CUstream_st;
struct CUevent_st;

namespace quire {

class Event;

// Threads: one at a time. Lifetime: move-only; work enqueued on it has ended when it is destroyed.
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

  // Waits until everything enqueued so far is done, and returns the first error of it.
  absl::Status Synchronize() const;
  // Copies between pinned or pageable host memory and the device, or on the device; the direction
  // follows from the addresses. The source must stay unchanged until the stream was waited for.
  absl::Status Copy(void* to, const void* from, std::int64_t bytes) const;
  absl::Status Zero(void* to, std::int64_t bytes) const;
  // Later work on this stream waits for `event`.
  absl::Status WaitFor(const Event& event) const;

 private:
  explicit Stream(const Device& device) : device_(device) {}

  Device device_;
  CUstream_st* stream_ = nullptr;
};

// A mark in a stream. Threads and lifetime as Stream's.
class Event {
 public:
  static absl::StatusOr<Event> Create(const Device& device);

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  CUevent_st* cuda() const { return event_; }
  // Marks the end of what is enqueued on `stream` now.
  absl::Status Record(const Stream& stream);
  // Waits for the mark; returns at once when none was recorded.
  absl::Status Synchronize() const;
  absl::StatusOr<bool> IsDone() const;

 private:
  Event() = default;

  CUevent_st* event_ = nullptr;
};

}  // namespace quire
