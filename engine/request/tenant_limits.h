#pragma once

// What one tenant may take of the engine at once, and what it has taken.
//
// Place:      Engine refuses by the priority, AdmissionLimiter by the queue limits; Scheduler waits
//             by the running limit, and takes the tenants in turn.
// Threads:    values.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace quire::engine {

// Absent: no limit of its own.
struct TenantLimits {
  std::optional<std::int32_t> max_running_requests = {};
  std::optional<std::int32_t> max_queued_requests = {};
  std::optional<std::int64_t> max_queued_tokens = {};  // of prompts
  // The least number that its callers may ask for: the lower a priority, the more urgent.
  std::optional<std::int32_t> most_urgent_priority = {};
};

struct TenantOptions {
  TenantLimits defaults;  // each tenant without an entry
  std::map<std::string, TenantLimits> entries;

  const TenantLimits& LimitsOf(const std::string& tenant) const {
    const auto entry = entries.find(tenant);
    return entry == entries.end() ? defaults : entry->second;
  }
};

// The requests of one tenant in the scheduler.
struct TenantRequests {
  std::int32_t live = 0;
  std::int32_t running = 0;  // of those, admitted ones
  std::int32_t max_running = std::numeric_limits<std::int32_t>::max();
  // Number of its last start, or of its coming; no two tenants have the same.
  std::uint64_t turn = 0;
  std::uint32_t num_prompts = 0;  // counted so far while the prompts of a step are put in order

  bool may_start() const { return running < max_running; }
  // The tenant with the least comes first: the one with the fewest running requests, then the one
  // whose turn is longest ago. Nothing that its callers ask for has a part in it.
  std::pair<std::int32_t, std::uint64_t> order() const { return {running, turn}; }
};

}  // namespace quire::engine
