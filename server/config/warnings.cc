#include "server/config/warnings.h"

#include "absl/strings/str_join.h"
#include "base/logging.h"

namespace quire::server {
namespace {

bool LimitsOnlyRunning(const engine::TenantLimits& limits) {
  return limits.max_running_requests && !limits.max_queued_requests && !limits.max_queued_tokens;
}

}  // namespace

std::vector<std::string> FindTenantsWithoutQueueLimit(const engine::TenantOptions& tenants) {
  std::vector<std::string> names;
  if (LimitsOnlyRunning(tenants.defaults)) names.emplace_back("tenants.defaults");
  for (const auto& [name, limits] : tenants.entries) {
    if (LimitsOnlyRunning(limits)) names.push_back(name);
  }
  return names;
}

void WarnAboutTenants(const engine::TenantOptions& tenants) {
  const std::vector<std::string> names = FindTenantsWithoutQueueLimit(tenants);
  if (names.empty()) return;
  log::Warn("config", "a tenant can fill the queue that all tenants share",
            {{"tenants", absl::StrJoin(names, ",")},
             {"reason", "max_running_requests without max_queued_requests or max_queued_tokens"}});
}

}  // namespace quire::server
