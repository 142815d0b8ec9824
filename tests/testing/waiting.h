#pragma once

// Waiting helpers of tests. style_check.py refuses sleeps in all other files of tests/
// (docs/style.md, section 5).

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace quire::testing {

inline constexpr absl::Duration kBetweenLooks = absl::Milliseconds(1);

// Polls `condition` and returns true once it is true, or false after `timeout`.
[[nodiscard]] inline bool WaitUntil(absl::FunctionRef<bool()> condition,
                                    absl::Duration timeout = absl::Seconds(20)) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!condition()) {
    if (MonotonicNow() >= deadline) return condition();
    absl::SleepFor(kBetweenLooks);
  }
  return true;
}

// Polls `condition` for `duration` and returns false as soon as it is false. It misses what a slow
// machine does later, so a test that can wait for an event calls WaitUntil instead.
[[nodiscard]] inline bool Stays(absl::FunctionRef<bool()> condition, absl::Duration duration) {
  const absl::Time end = MonotonicNow() + duration;
  while (MonotonicNow() < end) {
    if (!condition()) return false;
    absl::SleepFor(kBetweenLooks);
  }
  return true;
}

// Pauses a peer that is slow on purpose, or a thread that polls.
inline void Pace(absl::Duration duration) {
  absl::SleepFor(duration);
}

}  // namespace quire::testing
