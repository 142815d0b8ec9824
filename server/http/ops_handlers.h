#pragma once

// GET /metrics, /livez, /readyz, /startupz: what operators and their machines ask.
//
// Place:      between ServingState, the metric registry and HttpListener.
// Invariants: answers come from memory; nothing waits for the engine.
// Threads:    any.
// Lifetime:   state and registry outlive the handlers.

#include "base/probe.h"
#include "server/api/serving_state.h"
#include "server/http/http_listener.h"

namespace quire::server {

// `registry` null: no /metrics.
HttpHandlers MakeOpsHandlers(const ServingState* state, const probe::Registry* registry);

}  // namespace quire::server
