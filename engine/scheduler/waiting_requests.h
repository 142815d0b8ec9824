#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

// The requests that were never admitted, in the order in which they will be admitted. Tenants are
// ordered by TenantRequests::order. The requests of one tenant are ordered by level (the priority
// minus the aging intervals waited), then by deadline, by LengthClass of the tokens to compute, and
// by arrival. So a priority or a deadline orders only requests of one tenant. Without aging the
// length is ignored, because a long request could otherwise wait forever.
//
// A timer moves each request when it ages, so no operation scans all waiting requests.
//
// Place:      part of Admission.
// Invariants: see CheckIntegrity(). Its results depend only on its calls; each request is in the
//             order of its tenant and, while requests age, has one timer.
// Threads:    engine thread only.
// Lifetime:   requests and their tenants stay alive while they are in it.
class WaitingRequests {
 public:
  // Zero: no request ages.
  explicit WaitingRequests(absl::Duration aging_interval) : aging_interval_(aging_interval) {}

  // O(requests) if the interval changes.
  void SetAgingInterval(absl::Duration interval);
  // O(log requests), like Remove. REQUIRES: the request is not waiting, and tenant_requests is set.
  void Add(ScheduledRequest* request);
  // Returns false if the request is not waiting.
  bool Remove(const ScheduledRequest* request);
  // Returns the head of the queue, or null if no tenant with waiting requests may start one.
  // O(tenants), and O(log requests) for each request that has aged since the last call. `now` never
  // decreases.
  ScheduledRequest* Head(absl::Time now);
  // Returns the priority minus the intervals that the request has waited, as of the last call of
  // Head. REQUIRES: the request is waiting.
  std::int64_t LevelOf(const ScheduledRequest* request) const {
    return places_.at(request).place.level;
  }
  // Returns whether Head would return a request. O(tenants).
  bool AnyMayStart() const;

  std::size_t size() const { return places_.size(); }

  absl::Status CheckIntegrity() const;

 private:
  struct Place {
    std::int64_t level = 0;  // priority minus intervals waited
    absl::Time deadline;
    std::uint32_t length_class = 0;
    std::uint64_t arrival = 0;
    ScheduledRequest* request = nullptr;
    // The arrival is unique, so the request never decides.
    std::weak_ordering operator<=>(const Place&) const = default;
  };
  struct Timer {
    absl::Time time;
    std::uint64_t arrival = 0;
    ScheduledRequest* request = nullptr;
    std::weak_ordering operator<=>(const Timer&) const = default;
  };
  struct Entry {
    TenantRequests* tenant = nullptr;
    Place place;
    absl::Time ages_at;
  };

  bool has_aging() const { return aging_interval_ > absl::ZeroDuration(); }
  void SetTimer(Entry& entry, std::int64_t intervals);
  void Age(ScheduledRequest* request, absl::Time now);

  absl::Duration aging_interval_;
  absl::flat_hash_map<const ScheduledRequest*, Entry> places_;  // its order affects no decision
  std::map<TenantRequests*, std::set<Place>> by_tenant_;        // no set is empty
  std::set<Timer> timers_;
};

}  // namespace quire::engine
