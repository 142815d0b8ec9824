#include "server/vllm/vllm_service.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "quire/v1/generation.pb.h"
#include "server/api/status_mapping.h"
#include "server/config/live_config.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"
#include "server/grpc/generate_reactor.h"
#include "server/grpc/unary_call.h"
#include "server/vllm/vllm_answer.h"
#include "server/vllm/vllm_request.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace quire::server {
namespace {

namespace wire = ::vllm::grpc::engine;

using Base = wire::VllmEngine;
// Requests arrive as bytes. Therefore only requests of authenticated callers are parsed
// (grpc/unary_call.h), and errors about invalid UTF-8 name the field. Unsupported requests are not
// parsed.
using RawService = Base::WithRawCallbackMethod_Generate<
    Base::WithRawCallbackMethod_Embed<Base::WithRawCallbackMethod_HealthCheck<
        Base::WithRawCallbackMethod_FlushCache<Base::WithRawCallbackMethod_StartProfile<
            Base::WithRawCallbackMethod_StopProfile<Base::WithRawCallbackMethod_Abort<
                Base::WithRawCallbackMethod_GetModelInfo<Base::WithRawCallbackMethod_GetServerInfo<
                    Base::WithRawCallbackMethod_GetLoads<Base::WithRawCallbackMethod_GetTokenizer<
                        Base::WithRawCallbackMethod_SubscribeKvEvents<Base::Service>>>>>>>>>>>>;

constexpr int kMaxAbortedIds = 1024;

GenerateFormat MakeVllmFormat() {
  const auto answer = std::make_shared<VllmAnswer>();
  return {.method = "VllmEngine.Generate",
          .parse = [](const grpc::ByteBuffer& bytes, v1::GenerateRequest* request) -> absl::Status {
            wire::GenerateRequest message;
            QUIRE_RETURN_IF_ERROR(ParseMessage(bytes, &message));
            return ToGenerateRequest(message, request);
          },
          .write = [answer](v1::GenerateResponse* event) -> std::optional<grpc::ByteBuffer> {
            wire::GenerateResponse message;
            if (!answer->Take(*event, &message)) return std::nullopt;
            return SerializeMessage(message);
          },
          .translate_fields = &NameVllmFields};
}

// Reactor of an unsupported streaming call. It finishes the call at once.
class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Returns the model's sampling defaults for gateways to send, because this service does not apply
// them itself. JsonText would print a float as a double: 0.800000011920929.
std::string DefaultSamplingJson(const engine::SamplingParams& defaults) {
  return absl::StrCat("{\"temperature\":", defaults.temperature, ",\"top_p\":", defaults.top_p,
                      ",\"top_k\":", defaults.top_k, ",\"min_p\":", defaults.min_p,
                      ",\"repetition_penalty\":", defaults.repetition_penalty, "}");
}

std::int32_t ToInt32(std::int64_t value) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(value, INT32_MAX));
}

void FillLoad(const ServedModel& served, const engine::EngineStats& stats,
              wire::SchedulerLoad* load) {
  const cache::CacheStats& cache = stats.cache;
  const std::int64_t page_size = served.description.kv_page_size;
  const std::int64_t groups = served.description.kv_group_count;
  load->set_num_running_reqs(stats.running);
  load->set_num_waiting_reqs(stats.waiting);
  load->set_num_total_reqs(stats.running + stats.waiting);
  load->set_num_used_tokens(ToInt32(cache.used_pages * page_size / groups));
  load->set_max_total_num_tokens(ToInt32(cache.usable_pages * page_size / groups));
  if (cache.usable_pages > 0) {
    load->set_token_usage(static_cast<double>(cache.used_pages) / cache.usable_pages);
  }
  load->set_gen_throughput(stats.generation_tokens_per_second);
  load->set_num_waiting_uncached_tokens(ToInt32(stats.waiting_uncached_tokens));
  if (cache.queried_tokens > 0) {
    load->set_cache_hit_rate(static_cast<double>(cache.hit_tokens) /
                             static_cast<double>(cache.queried_tokens));
  }
}

class VllmService final : public RawService {
 public:
  VllmService(const HandlerContext& context, const VllmDescription& description)
      : context_(context), description_(description) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerWriteReactor<grpc::ByteBuffer>;
  using Bytes = grpc::ByteBuffer;

  Stream* Generate(Context* call, const Bytes* request) override {
    return StartGenerate(context_, call, *request, MakeVllmFormat());
  }

  Reactor* Embed(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(Unary("VllmEngine.Embed", call, request, response),
                             "VllmEngine.Embed (embeddings)");
  }

  // Needs no token and returns the same health as grpc.health.v1. The request has no fields.
  Reactor* HealthCheck(Context* call, const Bytes*, Bytes* response) override {
    const std::string readiness(context_.state->DescribeReadiness());
    wire::HealthCheckResponse health;
    health.set_healthy(readiness == "ready");
    health.set_message(readiness);
    *response = SerializeMessage(health);
    Reactor* const reactor = call->DefaultReactor();
    FinishCall(context_, reactor, "VllmEngine.HealthCheck", absl::OkStatus());
    return reactor;
  }

  // Flushing the cache is for operators, who call AdminService.
  Reactor* FlushCache(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(
        Unary("VllmEngine.FlushCache", call, request, response),
        "VllmEngine.FlushCache on the data listener (use quire.v1.AdminService.FlushCache)");
  }

  Reactor* StartProfile(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(Unary("VllmEngine.StartProfile", call, request, response),
                             "VllmEngine.StartProfile");
  }

  Reactor* StopProfile(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(Unary("VllmEngine.StopProfile", call, request, response),
                             "VllmEngine.StopProfile");
  }

  Reactor* Abort(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<wire::AbortRequest, wire::AbortResponse>(
        Unary("VllmEngine.Abort", call, request, response),
        [this](const Identity& caller, const auto& in, auto*) { return AbortAll(caller, in); });
  }

  Reactor* GetModelInfo(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<wire::GetModelInfoRequest, wire::GetModelInfoResponse>(
        Unary("VllmEngine.GetModelInfo", call, request, response),
        [this](const Identity&, const auto&, auto* out) { return FillModelInfo(out); });
  }

  Reactor* GetServerInfo(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<wire::GetServerInfoRequest, wire::GetServerInfoResponse>(
        Unary("VllmEngine.GetServerInfo", call, request, response),
        [this](const Identity& caller, const auto&, auto* out) {
          FillServerInfo(caller, out);
          return absl::OkStatus();
        });
  }

  // The loads include all tenants, so the call needs the scope `metrics`.
  Reactor* GetLoads(Context* call, const Bytes* request, Bytes* response) override {
    UnaryCall unary = Unary("VllmEngine.GetLoads", call, request, response);
    unary.scope = Scope::kMetrics;
    return Answer<wire::GetLoadsRequest, wire::GetLoadsResponse>(
        unary, [this](const Identity&, const auto& in, auto* out) { return FillLoads(in, out); });
  }

  Stream* GetTokenizer(Context* call, const Bytes*) override {
    return RefuseStream(call, "VllmEngine.GetTokenizer");
  }

  Stream* SubscribeKvEvents(Context* call, const Bytes*) override {
    return RefuseStream(call, "VllmEngine.SubscribeKvEvents");
  }

 private:
  UnaryCall Unary(absl::string_view method, Context* call, const Bytes* request, Bytes* response) {
    return {context_, call, request, response, method, Scope::kGenerate};
  }

  Stream* RefuseStream(Context* call, absl::string_view method) {
    absl::Status status = Authorize(context_, *call, method, Scope::kGenerate).status();
    if (status.ok()) status = FeatureUnsupported(method, "");
    const grpc::Status answer = ToGrpcStatus(status);
    context_.probe->CountRpc(method, static_cast<absl::StatusCode>(answer.error_code()));
    return new RefusedStream(answer);
  }

  absl::Status AbortAll(const Identity& caller, const wire::AbortRequest& request) {
    const int count = request.request_ids_size();
    if (count > kMaxAbortedIds) {
      return BadParameter("request_ids", absl::StrCat(count, " entries long"),
                          absl::StrCat("at most ", kMaxAbortedIds, " entries"));
    }
    for (int i = 0; i < count; ++i) {
      QUIRE_RETURN_IF_ERROR(
          CheckRequestId(request.request_ids(i), absl::StrCat("request_ids[", i, "]")));
    }
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    // An unknown id is not an error, because gateways also abort requests that have just ended.
    for (const std::string& id : request.request_ids()) {
      served->engine->Cancel({caller.tenant, caller.principal}, id, engine::CancelSource::kApi);
    }
    return absl::OkStatus();
  }

  absl::Status FillModelInfo(wire::GetModelInfoResponse* response) {
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    const ModelDescription& model = served->description;
    response->set_model_path(description_.model_path);
    response->set_is_generation(model.has_head);
    response->set_max_context_length(static_cast<std::uint32_t>(model.max_context_tokens));
    response->set_vocab_size(static_cast<std::uint32_t>(model.vocab_size));
    response->set_served_model_name(served->id());
    if (description_.has_own_files) response->set_tokenizer_path(description_.model_path);
    response->add_architectures(model.architecture);
    response->mutable_eos_token_ids()->Assign(model.eos_token_ids.begin(),
                                              model.eos_token_ids.end());
    response->set_pad_token_id(model.pad_token_id.value_or(0));
    response->set_bos_token_id(model.bos_token_id.value_or(0));
    // Leaves space for one token of output.
    response->set_max_req_input_len(model.max_context_tokens - 1);
    response->set_default_sampling_params_json(
        DefaultSamplingJson(served->translator.options()->sampling_defaults));
    return absl::OkStatus();
  }

  // Also works while the model is loading.
  void FillServerInfo(const Identity& caller, wire::GetServerInfoResponse* response) {
    response->set_is_paused(context_.state->state() == LifeState::kDraining);
    response->set_uptime_seconds(
        absl::ToDoubleSeconds(context_.clock->Now() - description_.start_time));
    response->set_server_type("quire");
    response->set_data_parallel_size(1);
    response->set_max_num_seqs(context_.config->options()->engine.max_running_sequences);
    const ServedModel* served = context_.state->model();
    if (served == nullptr) return;
    response->set_max_num_seqs(served->engine->max_running_sequences());
    std::uint32_t active = 0;
    for (const engine::RequestInfo& request : served->engine->ListRequests()) {
      if (request.tenant == caller.tenant) ++active;
    }
    response->set_active_requests(active);
  }

  absl::Status FillLoads(const wire::GetLoadsRequest& request, wire::GetLoadsResponse* loads) {
    if (request.has_dp_rank() && request.dp_rank() != 0) {
      return BadParameter("dp_rank", absl::StrCat(request.dp_rank()), "0; there is one rank");
    }
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    loads->set_timestamp(
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", context_.clock->WallNow(), absl::UTCTimeZone()));
    loads->set_version(description_.version);
    loads->set_dp_rank_count(1);
    wire::SchedulerLoad* const load = loads->add_loads();
    FillLoad(*served, served->engine->GetStats(), load);
    load->set_max_running_requests(served->engine->max_running_sequences());
    return absl::OkStatus();
  }

  const HandlerContext context_;
  const VllmDescription description_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeVllmService(const HandlerContext& context,
                                               const VllmDescription& description) {
  return std::make_unique<VllmService>(context, description);
}

}  // namespace quire::server
