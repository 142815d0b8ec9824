#pragma once

// Records when a thread last made progress.
//
// Place:      written by the engine thread, between steps and during long steps; read by health
//             checks.
// Threads:    one thread calls Beat. age is thread-safe.
// Lifetime:   the clock outlives it.

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace quire {

class Heartbeat {
 public:
  explicit Heartbeat(const Clock* clock) : clock_(clock) { Beat(); }

  void Beat() { Beat(clock_->Now()); }
  // REQUIRES: `now` is the current time of the clock.
  void Beat(absl::Time now) { last_.store(absl::ToUnixNanos(now), std::memory_order_release); }
  // Returns the time since the last beat.
  absl::Duration age() const {
    return clock_->Now() - absl::FromUnixNanos(last_.load(std::memory_order_acquire));
  }

 private:
  const Clock* const clock_;
  std::atomic<std::int64_t> last_{0};  // Unix nanoseconds
};

}  // namespace quire
