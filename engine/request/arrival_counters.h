#pragma once

// The two metric families of requests that come. The engine counts those that reach Accept, the
// network edge those that it refuses before, and received = accepted + rejected holds over both.
//
// Place:      between the registry and EngineProbe, and what the network edge counts.
// Threads:    any.
// Lifetime:   the registry outlives the counters.

#include <string>

#include "base/error_reason.h"
#include "base/probe.h"

namespace quire::engine {

probe::Counter ReceivedCounter(probe::Registry* registry, const std::string& model_name);
probe::Counter RejectedCounter(probe::Registry* registry, Reason reason);

}  // namespace quire::engine
