#pragma once

// What a configuration may say but few would want: told when it takes effect, at the start and by
// every reload, and never refused.
//
// Place:   asked by the daemon.
// Threads: any.

#include <string>
#include <vector>

#include "engine/request/tenant_limits.h"

namespace quire::server {

// Tenants whose running requests are limited while nothing but the queue of all limits how many of
// them wait: one of them can fill it and keep everybody else out. "tenants.defaults" stands for
// those that are not listed.
std::vector<std::string> TenantsWithOpenQueues(const engine::TenantOptions& tenants);

// Logs a line that names them, if there are any.
void WarnAboutTenants(const engine::TenantOptions& tenants);

}  // namespace quire::server
