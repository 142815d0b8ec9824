#include "server/api/server_probe.h"

#include "engine/request/arrival_counters.h"

namespace quire::server {

ServerProbe::ServerProbe(probe::Registry* registry, const std::string& model_id)
    : registry_(registry),
      streams_(registry->AddGauge("quire_grpc_streams_active",
                                  "Open gRPC calls that generate, embed or score.")),
      received_requests_(engine::ReceivedCounter(registry, model_id)) {}

void ServerProbe::CountRefused(Reason reason) {
  received_requests_.Increment();
  engine::RejectedCounter(registry_, reason).Increment();
}

void ServerProbe::CountRpc(absl::string_view method, absl::StatusCode code) {
  registry_
      ->AddCounter("quire_rpcs_total", "Finished calls by method and code.",
                   {{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
}

void ServerProbe::CountTenant(const AccessRecord& record, bool is_named) {
  TenantCounters counters = CountersOf(is_named ? record.tenant : "other", record.code);
  counters.requests.Increment();
  counters.uncached_tokens.Increment(record.prompt_tokens - record.cached_tokens);
  counters.cached_tokens.Increment(record.cached_tokens);
  counters.generated_tokens.Increment(record.completion_tokens);
}

ServerProbe::TenantCounters ServerProbe::CountersOf(const std::string& tenant,
                                                    const std::string& code) {
  MutexLock lock(&mutex_);
  const auto [found, is_new] = tenant_counters_.try_emplace({tenant, code});
  if (!is_new) return found->second;
  const auto tokens = [&](const char* kind) {
    return registry_->AddCounter("quire_tenant_tokens_total",
                                 "Tokens of finished requests by tenant.",
                                 {{"tenant", tenant}, {"kind", kind}});
  };
  found->second = {.requests = registry_->AddCounter("quire_tenant_requests_total",
                                                     "Finished requests by tenant and gRPC code.",
                                                     {{"tenant", tenant}, {"code", code}}),
                   .uncached_tokens = tokens("prompt_uncached"),
                   .cached_tokens = tokens("prompt_cached"),
                   .generated_tokens = tokens("generated")};
  return found->second;
}

}  // namespace quire::server
