#pragma once

// The limits of one tenant, and its current use of the engine.
//
// Place:      Engine checks the priority, AdmissionLimiter the queue limits, and Scheduler the
//             running limit. Scheduler also orders the tenants.
// Threads:    a value type; one thread at a time per object.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace quire::engine {

// An absent value means that the tenant has no limit of its own.
struct TenantLimits {
  std::optional<std::int32_t> max_running_requests = {};
  std::optional<std::int32_t> max_queued_requests = {};
  std::optional<std::int64_t> max_queued_tokens = {};  // prompt tokens
  // The lowest allowed priority value. A lower value is more urgent.
  std::optional<std::int32_t> most_urgent_priority = {};
};

struct TenantOptions {
  TenantLimits defaults;  // for tenants without an entry
  std::map<std::string, TenantLimits> entries;

  const TenantLimits& LimitsOf(const std::string& tenant) const {
    const auto entry = entries.find(tenant);
    return entry == entries.end() ? defaults : entry->second;
  }
};

// The requests of one tenant in the scheduler.
struct TenantRequests {
  std::int32_t live = 0;
  std::int32_t running = 0;  // the admitted ones among them
  std::int32_t max_running = std::numeric_limits<std::int32_t>::max();
  // Sequence number of the last time that a request of the tenant started, or of the tenant's
  // arrival if none has started. Unique among the tenants.
  std::uint64_t last_start = 0;
  std::uint32_t num_prompts = 0;  // scratch of PrefillPlanner, which orders the prompts of a step

  bool may_start() const { return running < max_running; }
  // The tenant with the smallest value comes first: the one with the fewest running requests, then
  // the one whose last start is longest ago. Parameters of requests do not affect it.
  std::pair<std::int32_t, std::uint64_t> order() const { return {running, last_start}; }
};

}  // namespace quire::engine
