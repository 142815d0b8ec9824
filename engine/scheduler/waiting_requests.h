#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

// By powers of four: prompts of about the same length keep the order of their arrival.
inline std::uint32_t LengthClass(std::uint32_t tokens) {
  return static_cast<std::uint32_t>(std::bit_width(tokens)) / 2;
}

// The requests that were never admitted, in order of admission: the tenants by
// TenantRequests::order, the requests of each by (priority minus one for each aging interval
// waited, deadline, LengthClass of the tokens to compute, arrival). So a priority or a deadline
// orders the requests of its own tenant only. Where requests do not age their length does not
// count, or a long one could wait for ever.
//
// Each request is moved when it ages, by a timer, so that nothing goes over all that wait.
//
// Place:      part of Scheduler.
// Invariants: CheckIntegrity(). A function of its calls; each request is in the order of its tenant
//             and, while requests age, has one timer.
// Threads:    engine thread only.
// Lifetime:   requests and their tenants stay alive while they are in it.
class WaitingRequests {
 public:
  // Zero: no request ages.
  explicit WaitingRequests(absl::Duration aging_interval) : aging_interval_(aging_interval) {}

  // O(requests), where it changes.
  void SetAgingInterval(absl::Duration interval);
  // REQUIRES: it is not in here, and of_tenant is set. O(log requests), as is Remove.
  void Add(ScheduledRequest* request);
  // False when it was not in here.
  bool Remove(const ScheduledRequest* request);
  // Null when no tenant that waits may start one. O(tenants), and O(log requests) for each request
  // that has aged since the last call. `now` never goes back.
  ScheduledRequest* Best(absl::Time now);
  // Its priority minus the intervals that it has waited, as of the last call of Best. REQUIRES: it
  // is in here.
  std::int64_t LevelOf(const ScheduledRequest* request) const {
    return places_.at(request).place.level;
  }
  // O(tenants).
  bool AnyMayStart() const;

  bool empty() const { return places_.empty(); }
  std::size_t size() const { return places_.size(); }

  // INTERNAL naming the first invariant that does not hold.
  absl::Status CheckIntegrity() const;

 private:
  struct Place {
    std::int64_t level = 0;  // priority less intervals waited
    absl::Time deadline;
    std::uint32_t length_class = 0;
    std::uint64_t arrival = 0;
    ScheduledRequest* request = nullptr;
    auto operator<=>(const Place& other) const {
      return std::tie(level, deadline, length_class, arrival) <=>
             std::tie(other.level, other.deadline, other.length_class, other.arrival);
    }
    bool operator==(const Place& other) const { return arrival == other.arrival; }
  };
  struct Timer {
    absl::Time time;
    std::uint64_t arrival = 0;
    ScheduledRequest* request = nullptr;
    auto operator<=>(const Timer& other) const {
      return std::tie(time, arrival) <=> std::tie(other.time, other.arrival);
    }
    bool operator==(const Timer& other) const { return arrival == other.arrival; }
  };
  struct Entry {
    TenantRequests* tenant = nullptr;
    Place place;
    absl::Time ages_at;
  };

  bool ages() const { return aging_interval_ > absl::ZeroDuration(); }
  void SetTimer(Entry& entry, std::int64_t intervals);
  void Age(ScheduledRequest* request, absl::Time now);

  absl::Duration aging_interval_;
  absl::flat_hash_map<const ScheduledRequest*, Entry> places_;  // never iterated for a decision
  std::map<TenantRequests*, std::set<Place>> by_tenant_;        // those with requests here
  std::set<Timer> timers_;
};

}  // namespace quire::engine
