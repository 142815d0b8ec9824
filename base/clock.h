#pragma once

// Time as a dependency, so that deadlines and ageing are tested without sleeping.
//
// Deadlines, timeouts, ages and heartbeats are times of one monotonic timeline: setting the wall
// clock while the process runs moves none of them. The timeline begins at the wall clock's time of
// the first question, so its times read like wall time, but what a message or a person is shown is
// ToWall() of them, and what a caller sends as wall time is compared after FromWall().
// tools/checks/style_check.py lists the files that may read the wall clock themselves.

#include "absl/time/time.h"

namespace quire {

// Never goes backwards. Thread-safe.
absl::Time MonotonicNow();

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;      // on the monotonic timeline
  virtual absl::Time WallNow() const = 0;  // as it is set now

  absl::Time ToWall(absl::Time time) const { return WallNow() + (time - Now()); }
  absl::Time FromWall(absl::Time wall) const { return Now() + (wall - WallNow()); }
};

class MachineClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
  absl::Time WallNow() const override;
};

}  // namespace quire
