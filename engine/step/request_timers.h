#pragma once

// When requests run out of time: at their deadline, and when they have waited too long for their
// first step.
//
// Place:      part of EngineCore, which ends the requests.
// Invariants: a request has a timer of each kind for which it has a time.
// Threads:    engine thread only.
// Lifetime:   a value; names requests by their arrival.

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>

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
    auto operator<=>(const Timer& other) const {
      return std::tie(time, arrival, kind) <=> std::tie(other.time, other.arrival, other.kind);
    }
  };

  void Add(const AcceptedRequest& request);
  void Remove(const AcceptedRequest& request);
  // The request was scheduled, or that does not matter any more.
  void RemoveQueueTimer(const AcceptedRequest& request);
  // The first timer whose time has come; it stays until it is removed.
  std::optional<Timer> FindDue(absl::Time now) const;
  // The time of the first one.
  absl::Time next() const;

 private:
  std::set<Timer> timers_;
};

}  // namespace quire::engine
