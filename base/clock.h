#pragma once

// Clock is an injectable time source, so that tests of deadlines do not have to sleep.
//
// Deadlines and heartbeats are times on one monotonic timeline. Changes of the wall clock do not
// affect it. It starts at the wall-clock time of the first call to MonotonicNow, so its times look
// like wall-clock times. Convert with ToWall() before showing a time to a person or client. Convert
// a wall-clock time from a caller with FromWall() before comparing it.
// tools/checks/style_check.py lists the files that may read the wall clock directly.

#include "absl/time/time.h"

namespace quire {

// Returns the current time on the monotonic timeline. Thread-safe.
absl::Time MonotonicNow();

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;      // on the monotonic timeline
  virtual absl::Time WallNow() const = 0;  // current wall-clock time

  absl::Time ToWall(absl::Time time) const { return WallNow() + (time - Now()); }
  absl::Time FromWall(absl::Time wall) const { return Now() + (wall - WallNow()); }
};

class MachineClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
  absl::Time WallNow() const override;
};

}  // namespace quire
