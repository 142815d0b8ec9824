#include "engine/request/arrival_counters.h"

namespace quire::engine {

probe::Counter ReceivedCounter(probe::Registry* registry, const std::string& model_name) {
  return registry->AddCounter("quire_requests_received_total",
                              "Generate, score and embed requests that reached validation.",
                              {{"model_name", model_name}});
}

probe::Counter RejectedCounter(probe::Registry* registry, Reason reason) {
  return registry->AddCounter("quire_requests_rejected_total",
                              "Requests refused before acceptance.",
                              {{"reason", ReasonName(reason)}});
}

}  // namespace quire::engine
