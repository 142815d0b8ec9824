#pragma once

// Warns about valid configurations that are probably mistakes, at start and on every reload. Such
// configurations are accepted.
//
// Place:   called by the daemon.
// Threads: any.

#include <string>
#include <vector>

#include "engine/request/tenant_limits.h"

namespace quire::server {

// Returns the tenants that have a limit for running requests, but neither for waiting requests nor
// for waiting tokens. Such a tenant can fill the queue that all tenants share, and block the
// others. "tenants.defaults" stands for unlisted tenants.
std::vector<std::string> FindTenantsWithoutQueueLimit(const engine::TenantOptions& tenants);

// Logs a warning with the tenants that FindTenantsWithoutQueueLimit returns, if there are any.
void WarnAboutTenants(const engine::TenantOptions& tenants);

}  // namespace quire::server
