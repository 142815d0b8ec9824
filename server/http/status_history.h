#pragma once

// The engine's statistics over the last ten minutes, for the charts of the status page.
//
// Place:      Listeners adds samples, /status.json shows them.
// Invariants: samples() has at most kMaxSamples elements, oldest first, at least kInterval apart.
// Threads:    thread-safe.

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/step/engine_stats.h"

namespace quire::server {

struct StatusSample {
  absl::Time time;
  engine::EngineStats stats;
};

class StatusHistory {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(5);
  static constexpr std::size_t kMaxSamples = 120;

  // Adds a sample, unless the last sample is younger than kInterval. Removes the oldest sample if
  // there are then more than kMaxSamples.
  void Add(absl::Time now, const engine::EngineStats& stats);
  std::vector<StatusSample> samples() const;

  // Returns INTERNAL if an invariant is violated.
  absl::Status CheckIntegrity() const;

 private:
  mutable Mutex mutex_;
  std::deque<StatusSample> samples_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
