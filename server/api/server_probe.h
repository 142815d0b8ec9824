#pragma once

// Metrics of the server that the engine cannot count. Metrics of the engine are in
// engine/request/engine_probe.h.
//
// Place:      created by the daemon, used by all handlers.
// Invariants: every finished call of a known method is counted once.
// Threads:    thread-safe.
// Lifetime:   the registry outlives it.

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "server/api/access_log.h"

namespace quire::server {

class ServerProbe {
 public:
  ServerProbe(probe::Registry* registry, const std::string& model_id);

  // Counts a finished call. `method` is a constant such as "Generate".
  void CountRpc(absl::string_view method, absl::StatusCode code);
  // Counts a generation or batch item that was refused before it reached the engine.
  void CountRefused(Reason reason);
  // Counts a finished request for its tenant. If `is_named` is false, the configuration does not
  // name the tenant. Such a tenant is counted as "other", because callers can make up names.
  void CountTenant(const AccessRecord& record, bool is_named);
  void StreamOpened() { streams_.Add(1); }
  void StreamClosed() { streams_.Add(-1); }

 private:
  struct TenantCounters {
    probe::Counter requests, uncached_tokens, cached_tokens, generated_tokens;
  };
  TenantCounters CountersOf(const std::string& tenant, const std::string& code);

  probe::Registry* const registry_;
  probe::Gauge streams_;
  probe::Counter received_requests_;
  Mutex mutex_;
  // Counters by tenant and code. They are cached, because a look-up in the registry waits for
  // scrapes.
  absl::flat_hash_map<std::pair<std::string, std::string>, TenantCounters> tenant_counters_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
