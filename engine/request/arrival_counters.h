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

inline probe::Counter ReceivedCounter(probe::Registry* registry, const std::string& model_name) {
  return registry->AddCounter("quire_requests_received_total",
                              "Generate, score and embed requests that reached validation.",
                              {{"model_name", model_name}});
}

inline probe::Counter RejectedCounter(probe::Registry* registry, Reason reason) {
  return registry->AddCounter("quire_requests_rejected_total",
                              "Requests refused before acceptance.",
                              {{"reason", ReasonName(reason)}});
}

}  // namespace quire::engine
