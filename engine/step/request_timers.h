#pragma once

// Timers for the deadlines and queue timeouts of requests.
//
// Place:      part of RequestLifecycle, which ends the requests.
// Invariants: a request has a deadline timer and a queue timer, each only if its time is finite.
//             The queue timer of a request that was scheduled in time is removed when it is due.
// Threads:    engine thread only.
// Lifetime:   a value type; refers to requests by arrival number.

#include <compare>
#include <cstdint>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "engine/request/accepted_request.h"

namespace quire::engine {

class RequestTimers {
 public:
  enum class Kind : std::uint8_t { kDeadline, kQueue };
  struct Timer {
    absl::Time time;
    std::uint64_t arrival = 0;
    Kind kind = Kind::kDeadline;
    std::weak_ordering operator<=>(const Timer&) const = default;
  };

  void Add(const AcceptedRequest& request) {
    if (request.request.deadline != absl::InfiniteFuture()) {
      timers_.insert({request.request.deadline, request.arrival, Kind::kDeadline});
    }
    if (request.queue_deadline != absl::InfiniteFuture()) {
      timers_.insert({request.queue_deadline, request.arrival, Kind::kQueue});
    }
  }
  void Remove(const AcceptedRequest& request) {
    timers_.erase({request.request.deadline, request.arrival, Kind::kDeadline});
    RemoveQueueTimer(request);
  }
  // Called when the queue timer of a request is due, but the request was scheduled in time.
  void RemoveQueueTimer(const AcceptedRequest& request) {
    timers_.erase({request.queue_deadline, request.arrival, Kind::kQueue});
  }
  // Returns the first timer that is due, if any, and does not remove it.
  std::optional<Timer> FindDue(absl::Time now) const {
    if (timers_.empty() || timers_.begin()->time > now) return std::nullopt;
    return *timers_.begin();
  }
  // Returns the time of the first timer, or the infinite future.
  absl::Time next() const {
    return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->time;
  }

 private:
  std::set<Timer> timers_;
};

}  // namespace quire::engine
