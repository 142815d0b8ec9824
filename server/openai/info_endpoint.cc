#include "server/openai/info_endpoint.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/status.h"
#include "server/http/ops_handlers.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

ordered_json ModelObject(const ServedModel& served, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(served.description.load_time)},
          {"owned_by", "quire"},
          {"root", served.id()},
          {"max_model_len", served.description.max_context_tokens}};
}

absl::StatusOr<HttpAnswer> Health(const InfoContext& context, const HttpRequest&) {
  return ReadinessAnswer(*context.handlers.state);
}

absl::StatusOr<HttpAnswer> Metrics(const InfoContext& context, const HttpRequest&) {
  if (context.server.metrics != nullptr) return MetricsAnswer(*context.server.metrics);
  return WithReason(
      absl::UnimplementedError("/metrics is not supported; set metrics.enabled to true"),
      Reason::kFeatureUnsupported, {{"field", "path"}});
}

absl::StatusOr<HttpAnswer> Model(const InfoContext& context, const HttpRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  const std::string name(absl::StripPrefix(request.path, "/v1/models/"));
  QUIRE_RETURN_IF_ERROR(served->translator.CheckModel(name));
  return JsonAnswer(ModelObject(*served, name));
}

absl::StatusOr<HttpAnswer> Models(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  ordered_json list = ordered_json::array({ModelObject(*served, served->id())});
  const auto options = served->translator.options();
  for (const std::string& alias : options->aliases) list.push_back(ModelObject(*served, alias));
  return JsonAnswer({{"object", "list"}, {"data", std::move(list)}});
}

absl::StatusOr<HttpAnswer> OpenApi(const InfoContext& context, const HttpRequest&) {
  return HttpAnswer{.content_type = "application/json", .body = context.openapi};
}

constexpr InfoEndpoint kInfoEndpoints[] = {
    {.path = "/health",
     .summary = "Status 200 if the server accepts requests, otherwise 503 with the reason.",
     .answer = &Health,
     .scope = std::nullopt},
    {.path = "/v1/models", .summary = "The model and its aliases.", .answer = &Models},
    {.path = "/v1/models/{model}", .summary = "The model with this name.", .answer = &Model},
    {.path = "/metrics",
     .summary = "All metrics in the text format of Prometheus.",
     .answer = &Metrics,
     .scope = Scope::kMetrics},
    {.path = "/openapi.json", .summary = "This document.", .answer = &OpenApi}};

}  // namespace

HttpAnswer JsonAnswer(const ordered_json& body) {
  return {.content_type = "application/json", .body = JsonText(body)};
}

std::span<const InfoEndpoint> OpenAiInfoEndpoints() {
  return kInfoEndpoints;
}

}  // namespace quire::server
