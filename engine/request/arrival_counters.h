#pragma once

// The two metric families of incoming requests. The engine counts the requests that reach Accept,
// and the network edge counts those that it rejects earlier. In total, received = accepted +
// rejected.
//
// Place:      between the registry and its two users, EngineProbe and the network edge.
// Threads:    any.
// Lifetime:   the registry outlives the counters.

#include <string>

#include "base/error_reason.h"
#include "base/probe.h"

namespace quire::engine {

probe::Counter ReceivedCounter(probe::Registry* registry, const std::string& model_name);
probe::Counter RejectedCounter(probe::Registry* registry, Reason reason);

}  // namespace quire::engine
