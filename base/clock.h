#pragma once

// Time as a dependency, so that deadlines and ageing are tested without sleeping.

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire {

// Thread-safe. Now() never goes backwards as far as the system clock allows.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace quire
