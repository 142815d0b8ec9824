#pragma once

// The metrics that only the network edge can count. Families of the engine are in
// engine/request/engine_probe.h.
//
// Place:      made by the daemon, used by all handlers.
// Invariants: every finished call of a known method is counted once.
// Threads:    every method from any thread.
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

  // A finished call; `method` is a constant such as "Generate".
  void CountRpc(absl::string_view method, absl::StatusCode code);
  // A generation or batch item that was refused before the engine saw it.
  void CountRefused(Reason reason);
  void StreamOpened() { streams_.Add(1); }
  void StreamClosed() { streams_.Add(-1); }

 private:
  probe::Registry* const registry_;
  probe::Gauge streams_;
  probe::Counter received_;
};

}  // namespace quire::server
