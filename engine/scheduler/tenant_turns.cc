#include "engine/scheduler/tenant_turns.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::engine {

std::int32_t TenantTurns::MaxRunning(const std::string& tenant) const {
  return options_->tenants.LimitsOf(tenant).max_running_requests.value_or(
      std::numeric_limits<std::int32_t>::max());
}

void TenantTurns::SetOptions(std::shared_ptr<const HotOptions> options) {
  options_ = std::move(options);
  for (auto& [tenant, requests] : tenants_) requests.max_running = MaxRunning(tenant);
}

void TenantTurns::Join(ScheduledRequest& request) {
  const std::string& tenant = request.request.tenant;
  const auto [entry, is_new] = tenants_.try_emplace(tenant);
  if (is_new) {
    entry->second.max_running = MaxRunning(tenant);
    entry->second.last_start = next_start_++;
  }
  request.tenant_requests = &entry->second;
  ++entry->second.live;
}

void TenantTurns::Start(ScheduledRequest& request) {
  ++request.tenant_requests->running;
  request.tenant_requests->last_start = next_start_++;
}

void TenantTurns::Leave(ScheduledRequest& request) {
  if (request.tenant_requests == nullptr) return;
  TenantRequests& requests = *request.tenant_requests;
  request.tenant_requests = nullptr;
  --requests.live;
  if (request.was_scheduled) --requests.running;
  QUIRE_CHECK(requests.running >= 0 && requests.running <= requests.live);
  if (requests.live == 0) tenants_.erase(request.request.tenant);
}

absl::Status TenantTurns::CheckIntegrity() const {
  for (const auto& [tenant, requests] : tenants_) {
    if (requests.live > 0 && requests.running >= 0 && requests.running <= requests.live) continue;
    return absl::InternalError(absl::StrCat("tenant ", tenant, " has ", requests.live,
                                            " requests, of which ", requests.running, " run"));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
