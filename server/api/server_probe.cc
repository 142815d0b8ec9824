#include "server/api/server_probe.h"

#include <string>

#include "server/api/access_log.h"

namespace quire::server {

// Two families are the engine's (engine/request/engine_probe.cc): a request that the translator
// refuses never reaches it, and received = accepted + rejected must hold all the same. Names and
// help texts are equal there and here; the registry checks that.
ServerProbe::ServerProbe(probe::Registry* registry, const std::string& model_id)
    : registry_(registry),
      streams_(registry->AddGauge("quire_grpc_streams_active",
                                  "Generate and BatchGenerate calls that are open.")),
      connections_(registry->AddGauge("quire_grpc_connections_active",
                                      "Connections of the gRPC listeners that are open.")),
      received_(registry->AddCounter("quire_requests_received_total",
                                     "Generations that reached validation.",
                                     {{"model_name", model_id}})) {}

void ServerProbe::CountRefused(Reason reason) {
  received_.Increment();
  registry_
      ->AddCounter("quire_requests_rejected_total", "Requests refused before acceptance.",
                   {{"reason", ReasonName(reason)}})
      .Increment();
}

void ServerProbe::CountClosedConnection(absl::string_view cause) {
  registry_
      ->AddCounter("quire_grpc_connections_closed_total",
                   "gRPC connections that the daemon ended or did not take.",
                   {{"cause", std::string(cause)}})
      .Increment();
}

void ServerProbe::CountRpc(absl::string_view method, absl::StatusCode code) {
  registry_
      ->AddCounter("quire_rpcs_total", "Finished calls of every method.",
                   {{"method", std::string(method)},
                    {"code", std::string(GrpcCodeName(static_cast<int>(code)))}})
      .Increment();
}

}  // namespace quire::server
