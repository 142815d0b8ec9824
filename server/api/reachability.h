#pragma once

// Tracks whether a listener answers. The daemon calls itself through each listener, since a port
// can be dead while everything behind it works.
//
// Place:   one per listener; read by the housekeeper.
// Threads: any.

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace quire::server {

class Reachability {
 public:
  void RecordAnswer() { last_nanos_.store(absl::ToUnixNanos(MonotonicNow())); }
  // Returns true if an answer arrived, or this object was created, within the last 20 s.
  bool is_reachable() const {
    return MonotonicNow() - absl::FromUnixNanos(last_nanos_.load()) < absl::Seconds(20);
  }

 private:
  std::atomic<std::int64_t> last_nanos_{absl::ToUnixNanos(MonotonicNow())};
};

}  // namespace quire::server
