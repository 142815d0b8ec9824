#pragma once

// GET /metrics, /livez, /readyz, /startupz: what operators and their machines ask.
//
// Place:      between ServingState, the metric registry and HttpListener.
// Invariants: answers come from memory; nothing waits for the engine. Health needs no token,
//             /metrics the scope `metrics`.
// Threads:    any.
// Lifetime:   state, registry and authenticator outlive the handlers.

#include "base/probe.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/http/http_listener.h"

namespace quire::server {

// 200 or 503 with the reason.
HttpAnswer ReadinessAnswer(const ServingState& state);

// `registry` null: no /metrics.
// `checks_host`: /metrics only for a client that names this machine in Host (http_host.h).
HttpHandlers MakeOpsHandlers(const ServingState* state, const probe::Registry* registry,
                             const Authenticator* authenticator, bool checks_host = false);

}  // namespace quire::server
