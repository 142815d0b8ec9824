#pragma once

// Whether a listener has answered lately: the process calls itself through each front door, since a
// port can be dead while everything behind it works.
//
// Place:   a listener's own; the housekeeper asks.
// Threads: any.

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace quire::server {

class Reachability {
 public:
  void NoteAnswer() { last_nanos_.store(absl::ToUnixNanos(MonotonicNow())); }
  // An answer came in the last 20 s, or this is not older.
  bool holds() const {
    return MonotonicNow() - absl::FromUnixNanos(last_nanos_.load()) < absl::Seconds(20);
  }

 private:
  std::atomic<std::int64_t> last_nanos_{absl::ToUnixNanos(MonotonicNow())};
};

}  // namespace quire::server
