#pragma once

// The tenants that have requests in the scheduler, the number of their running requests, and the
// order in which tenants are served.
//
// Place:      part of Admission.
// Invariants: see CheckIntegrity(). A tenant is here while it has a live request; no two tenants
//             have the same last_start.
// Threads:    engine thread only.
// Lifetime:   requests point to their entry (tenant_requests) until they leave.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/request/engine_options.h"
#include "engine/request/tenant_limits.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

class TenantTurns {
 public:
  explicit TenantTurns(std::shared_ptr<const HotOptions> options) : options_(std::move(options)) {}

  // Applies the limits of `options` to all tenants. Running requests continue.
  void SetOptions(std::shared_ptr<const HotOptions> options);
  // Called when the request begins to wait. Sets its tenant_requests.
  void Join(ScheduledRequest& request);
  // Called when the request is admitted for the first time.
  void Start(ScheduledRequest& request);
  // Called when the request has ended. Does nothing if it never joined or has left already.
  void Leave(ScheduledRequest& request);

  std::size_t size() const { return tenants_.size(); }
  absl::Status CheckIntegrity() const;

 private:
  std::int32_t MaxRunning(const std::string& tenant) const;

  std::shared_ptr<const HotOptions> options_;
  std::map<std::string, TenantRequests> tenants_;
  std::uint64_t next_start_ = 1;
};

}  // namespace quire::engine
