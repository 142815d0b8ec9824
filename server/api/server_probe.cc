#include "server/api/server_probe.h"

#include <string>

#include "base/grpc_code.h"
#include "engine/request/arrival_counters.h"

namespace quire::server {

ServerProbe::ServerProbe(probe::Registry* registry, const std::string& model_id)
    : registry_(registry),
      streams_(registry->AddGauge("quire_grpc_streams_active",
                                  "Open Generate and BatchGenerate calls.")),
      received_(engine::ReceivedCounter(registry, model_id)) {}

void ServerProbe::CountRefused(Reason reason) {
  received_.Increment();
  engine::RejectedCounter(registry_, reason).Increment();
}

void ServerProbe::CountRpc(absl::string_view method, absl::StatusCode code) {
  registry_
      ->AddCounter("quire_rpcs_total", "Finished calls by method and code.",
                   {{"method", std::string(method)},
                    {"code", std::string(GrpcCodeName(static_cast<int>(code)))}})
      .Increment();
}

}  // namespace quire::server
