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

void ServerProbe::CountTenant(const AccessRecord& record, bool is_named) {
  const std::string tenant = is_named ? record.tenant : "other";
  registry_
      ->AddCounter("quire_tenant_requests_total", "Finished requests by tenant and gRPC code.",
                   {{"tenant", tenant}, {"code", record.code}})
      .Increment();
  const auto add_tokens = [&](const char* kind, std::int32_t count) {
    registry_
        ->AddCounter("quire_tenant_tokens_total", "Tokens of finished requests by tenant.",
                     {{"tenant", tenant}, {"kind", kind}})
        .Increment(count);
  };
  add_tokens("prompt_uncached", record.prompt_tokens - record.cached_tokens);
  add_tokens("prompt_cached", record.cached_tokens);
  add_tokens("generated", record.completion_tokens);
}

}  // namespace quire::server
