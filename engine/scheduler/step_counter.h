#pragma once

// Numbers the steps of the engine, and remembers which steps carry page copies for a request.
//
// Place:      part of Scheduler; StepPipeline reports each launch and end of a step to it.
// Invariants: completed() <= launched(); the steps between are in flight.
// Threads:    engine thread only.
// Lifetime:   a value.

#include <cstdint>

#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

class StepCounter {
 public:
  // Returns the number of the step that begins.
  std::uint64_t Launch() { return ++launched_; }
  // Called when the oldest step in flight has ended, successfully or not.
  void Complete() { ++completed_; }

  std::uint64_t launched() const { return launched_; }
  std::uint64_t completed() const { return completed_; }

  // Records that page copies were queued for the request. They run in the step that is launched
  // next.
  void NoteCopy(ScheduledRequest& request) const {
    if (!HasPendingCopy(request)) request.copy_steps.first = launched_ + 1;
    request.copy_steps.last = launched_ + 1;
  }
  bool HasPendingCopy(const ScheduledRequest& request) const {
    return request.copy_steps.last > completed_;
  }

 private:
  std::uint64_t launched_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace quire::engine
