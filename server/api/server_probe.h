#pragma once

// Metrics of the server that the engine cannot count. Metrics of the engine are in
// engine/request/engine_probe.h.
//
// Place:      created by the daemon, used by all handlers.
// Invariants: every finished call of a known method is counted once.
// Threads:    thread-safe.
// Lifetime:   the registry outlives it.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "base/probe.h"

namespace quire::server {

class ServerProbe {
 public:
  ServerProbe(probe::Registry* registry, const std::string& model_id);

  // Counts a finished call. `method` is a constant such as "Generate".
  void CountRpc(absl::string_view method, absl::StatusCode code);
  // Counts a generation or batch item that was refused before it reached the engine.
  void CountRefused(Reason reason);
  void StreamOpened() { streams_.Add(1); }
  void StreamClosed() { streams_.Add(-1); }

 private:
  probe::Registry* const registry_;
  probe::Gauge streams_;
  probe::Counter received_;
};

}  // namespace quire::server
