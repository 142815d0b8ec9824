#pragma once

// What one tenant may take of the engine at once, and what it has taken.
//
// Place:      AdmissionLimiter refuses by the queue limits, Scheduler waits by the running limit.
// Threads:    values.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace quire::engine {

// Absent: no limit of its own.
struct TenantLimits {
  std::optional<std::int32_t> max_running_requests = {};
  std::optional<std::int32_t> max_queued_requests = {};
  std::optional<std::int64_t> max_queued_tokens = {};  // of prompts
};

struct TenantOptions {
  TenantLimits defaults;  // each tenant without an entry
  std::map<std::string, TenantLimits> entries;

  const TenantLimits& Of(const std::string& tenant) const {
    const auto entry = entries.find(tenant);
    return entry == entries.end() ? defaults : entry->second;
  }
};

// The requests of one tenant in the scheduler.
struct TenantRequests {
  std::int32_t live = 0;
  std::int32_t running = 0;  // of those, admitted ones
  std::int32_t max_running = std::numeric_limits<std::int32_t>::max();

  bool may_start() const { return running < max_running; }
};

}  // namespace quire::engine
