#pragma once

// Handlers of GET /metrics, /livez, /readyz and /startupz.
//
// Place:      between ServingState, the metric registry and the operators' listener.
// Invariants: handlers answer from memory and never wait for the engine. /metrics needs the scope
//             `metrics`, the other paths need no token.
// Threads:    any.
// Lifetime:   state, registry and authenticator outlive the handlers.

#include "base/probe.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/http/http_listener.h"

namespace quire::server {

// Returns the answer of /readyz: 200, or 503 with the reason.
HttpAnswer ReadinessAnswer(const ServingState& state);
// Returns all metrics in the text format of Prometheus, or 503 if they cannot be read. REQUIRES:
// the client has the scope `metrics`.
HttpAnswer MetricsAnswer(const probe::Registry& registry);

// If `registry` is null, there is no /metrics. If `checks_host` is true, /metrics is served only if
// the header Host is local (http_host.h).
HttpHandlers MakeOpsHandlers(const ServingState* state, const probe::Registry* registry,
                             const Authenticator* authenticator, bool checks_host = false);

}  // namespace quire::server
