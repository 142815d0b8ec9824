#include "server/api/server_probe.h"

#include <string>

#include "engine/request/arrival_counters.h"
#include "server/api/access_log.h"

namespace quire::server {

ServerProbe::ServerProbe(probe::Registry* registry, const std::string& model_id)
    : registry_(registry),
      streams_(registry->AddGauge("quire_grpc_streams_active",
                                  "Open Generate and BatchGenerate calls.")),
      connections_(registry->AddGauge("quire_grpc_connections_active",
                                      "Open connections of the gRPC listeners.")),
      received_(engine::ReceivedCounter(registry, model_id)) {}

void ServerProbe::CountRefused(Reason reason) {
  received_.Increment();
  engine::RejectedCounter(registry_, reason).Increment();
}

void ServerProbe::CountClosedConnection(absl::string_view cause) {
  registry_
      ->AddCounter("quire_grpc_connections_closed_total",
                   "gRPC connections that the server closed or refused.",
                   {{"cause", std::string(cause)}})
      .Increment();
}

void ServerProbe::CountRpc(absl::string_view method, absl::StatusCode code) {
  registry_
      ->AddCounter("quire_rpcs_total", "Finished calls by method and code.",
                   {{"method", std::string(method)},
                    {"code", std::string(GrpcCodeName(static_cast<int>(code)))}})
      .Increment();
}

}  // namespace quire::server
