#pragma once

// How tests wait. No other file of tests/ pauses: style_check.py refuses sleeps elsewhere
// (docs/style.md, section 5).

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace quire::testing {

inline constexpr absl::Duration kBetweenLooks = absl::Milliseconds(1);

// Whether `condition` holds before `timeout` is over.
[[nodiscard]] inline bool WaitUntil(absl::FunctionRef<bool()> condition,
                                    absl::Duration timeout = absl::Seconds(20)) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!condition()) {
    if (MonotonicNow() >= deadline) return condition();
    absl::SleepFor(kBetweenLooks);
  }
  return true;
}

// Shows that something does not happen: whether `condition` holds whenever it is looked at for
// `duration`. It can miss what a slow machine does later, so a test that can wait for something
// calls WaitUntil.
[[nodiscard]] inline bool Stays(absl::FunctionRef<bool()> condition, absl::Duration duration) {
  const absl::Time end = MonotonicNow() + duration;
  while (MonotonicNow() < end) {
    if (!condition()) return false;
    absl::SleepFor(kBetweenLooks);
  }
  return true;
}

// The pause of a peer that takes its time, or of a thread that does not ask as fast as it can.
inline void Pace(absl::Duration duration) {
  absl::SleepFor(duration);
}

}  // namespace quire::testing
