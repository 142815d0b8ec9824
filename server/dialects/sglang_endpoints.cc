// sglang's GET /server_info and /model_info, and their older names /get_server_info and
// /get_model_info. The gateways sglang-router and smg read them when a worker is added. The answers
// have only the members that the gateways read, not every option.
//
// Source: model_gateway/src/core/steps/worker/local/discover_metadata.rs of smg at 0beaedc5.

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "server/config/live_config.h"
#include "server/dialects/dialect_endpoints.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

// Returns "" for the embedded model, so that gateways do not look for its files.
std::string TokenizerPath(const ServerIdentity& server) {
  return server.has_own_files ? server.model_path : "";
}

absl::StatusOr<HttpAnswer> ServerInfo(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  const ModelDescription& model = served->description;
  const engine::EngineStats stats = served->engine->GetStats();
  const std::int64_t tokens = std::int64_t{model.kv_page_count} * model.kv_page_size;
  return JsonAnswer(
      {{"model_path", context.server.model_path},
       {"served_model_name", served->id()},
       {"tokenizer_path", TokenizerPath(context.server)},
       {"version", context.server.version},
       {"status", std::string(context.handlers.state->DescribeReadiness())},
       {"tp_size", 1},
       {"dp_size", 1},
       {"disaggregation_mode", "null"},
       {"context_length", model.max_context_tokens},
       {"max_total_tokens", tokens / model.kv_group_count},
       {"max_running_requests", served->engine->max_running_sequences()},
       {"internal_states",
        ordered_json::array({{{"last_gen_throughput", stats.generation_tokens_per_second}}})}});
}

absl::StatusOr<HttpAnswer> ModelInfo(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  const ModelDescription& model = served->description;
  return JsonAnswer({{"model_path", context.server.model_path},
                     {"tokenizer_path", TokenizerPath(context.server)},
                     {"is_generation", model.has_head},
                     {"preferred_sampling_params", nullptr},
                     {"weight_version", model.weights_fingerprint},
                     {"has_image_understanding", false},
                     {"has_audio_understanding", false},
                     {"architectures", ordered_json::array({model.architecture})}});
}

constexpr absl::string_view kServerSummary = "The server in the format of sglang.";
constexpr absl::string_view kModelSummary = "The model in the format of sglang.";

constexpr InfoEndpoint kInfo[] = {
    {.path = "/server_info", .summary = kServerSummary, .answer = &ServerInfo},
    {.path = "/get_server_info", .summary = kServerSummary, .answer = &ServerInfo},
    {.path = "/model_info", .summary = kModelSummary, .answer = &ModelInfo},
    {.path = "/get_model_info", .summary = kModelSummary, .answer = &ModelInfo}};

}  // namespace

EndpointTables SglangTables() {
  return {.info = kInfo};
}

}  // namespace quire::server
