// Ollama's API: GET /, /api/tags, /api/version and /api/ps, POST /api/show, /api/generate and
// /api/chat. Calls that change models, and /api/embed, are refused. The message names the
// alternative if there is one.
//
// Source: docs/openapi.yaml of Ollama at 017eb8ae.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "quire/v1/model.pb.h"
#include "server/api/response_translator.h"
#include "server/dialects/dialect_endpoints.h"
#include "server/dialects/ollama_answer.h"
#include "server/dialects/ollama_request.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

std::string TimeText(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone());
}

// Returns "8.0B" or "135.0M".
std::string FormatCount(std::int64_t count) {
  const auto value = static_cast<double>(count);
  return count >= 1'000'000'000 ? absl::StrFormat("%.1fB", value / 1e9)
                                : absl::StrFormat("%.1fM", value / 1e6);
}

ordered_json Details(const ModelDescription& model) {
  return {{"family", model.architecture},
          {"families", ordered_json::array({model.architecture})},
          {"parameter_size", FormatCount(model.parameter_count)},
          {"quantization_level", model.quantization == "none" ? model.dtype : model.quantization}};
}

ordered_json ModelEntry(const ServedModel& served, const std::string& name) {
  return {{"name", name},
          {"model", name},
          {"modified_at", TimeText(served.description.load_time)},
          {"size", served.description.weight_bytes},
          {"digest", served.description.weights_fingerprint},
          {"details", Details(served.description)}};
}

absl::StatusOr<HttpAnswer> Root(const InfoContext&, const HttpRequest&) {
  return HttpAnswer{.body = "quire is running\n"};
}

absl::StatusOr<HttpAnswer> Version(const InfoContext& context, const HttpRequest&) {
  return JsonAnswer({{"version", context.server.version}});
}

absl::StatusOr<HttpAnswer> Tags(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  ordered_json models = ordered_json::array({ModelEntry(*served, served->id())});
  const auto options = served->translator.options();
  for (const std::string& alias : options->aliases) models.push_back(ModelEntry(*served, alias));
  return JsonAnswer({{"models", std::move(models)}});
}

absl::StatusOr<HttpAnswer> RunningModels(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  const ModelDescription& model = served->description;
  ordered_json entry = ModelEntry(*served, served->id());
  entry.erase("modified_at");
  const std::int64_t size = model.weight_bytes + model.pool_bytes + model.workspace_bytes;
  entry["size"] = size;
  entry["size_vram"] = served->device.device.is_cpu() ? 0 : size;
  entry["context_length"] = model.max_context_tokens;
  // The model stays loaded as long as the server runs.
  entry["expires_at"] = "9999-12-31T23:59:59Z";
  return JsonAnswer({{"models", ordered_json::array({std::move(entry)})}});
}

// Returns Ollama's names of the model's capabilities.
ordered_json Capabilities(const ServedModel& served) {
  v1::Model model;
  ToProto(served, &model);
  ordered_json names = ordered_json::array();
  for (const std::string& capability : model.capabilities()) {
    for (const auto& [ours, theirs] :
         {std::pair("generate", "completion"), std::pair("tools", "tools"),
          std::pair("reasoning", "thinking"), std::pair("embed", "embedding")}) {
      if (capability == ours) names.push_back(theirs);
    }
  }
  return names;
}

absl::StatusOr<EvaluationPlan> ReadShow(const EvaluationBodyContext& context,
                                        absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, OllamaFields(), kOllamaShow, context.limits));
  const JsonFields body(document.root());
  const ServedModel& served = context.served;
  std::string known;
  // `name` is the older spelling of `model`.
  for (const char* const key : {"model", "name"}) {
    std::string name;
    QUIRE_RETURN_IF_ERROR(
        body.Text(key, [&](const std::string& v) { name = std::string(OllamaModelName(v)); }));
    if (name.empty()) continue;
    if (!known.empty() && name != known) {
      return BadField(*body.Find(key), "differs from model; send only one of them");
    }
    QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(name));
    known = std::move(name);
  }
  EvaluationPlan plan;
  plan.answer = [&served](const std::vector<EvaluationResult>&) -> absl::StatusOr<std::string> {
    const ModelDescription& model = served.description;
    ordered_json info = {{"general.architecture", model.architecture},
                         {"general.parameter_count", model.parameter_count}};
    info[absl::StrCat(model.architecture, ".context_length")] = model.max_context_tokens;
    info[absl::StrCat(model.architecture, ".vocab_size")] = model.vocab_size;
    return JsonText(ordered_json{{"modified_at", TimeText(model.load_time)},
                                 {"details", Details(model)},
                                 {"model_info", std::move(info)},
                                 {"capabilities", Capabilities(served)}});
  };
  return plan;
}

constexpr absl::string_view kLines = "application/x-ndjson";

constexpr GenerationEndpoint kGeneration[] = {{.path = "/api/generate",
                                               .method = "OllamaGenerate",
                                               .id_prefix = "",
                                               .read = &ReadOllamaGenerate,
                                               .make_writer = &MakeOllamaAnswer,
                                               .write_error = &OllamaErrorBody,
                                               .stream_type = kLines,
                                               .body = {&OllamaFields, kOllamaGenerate}},
                                              {.path = "/api/chat",
                                               .method = "OllamaChat",
                                               .id_prefix = "",
                                               .read = &ReadOllamaChat,
                                               .make_writer = &MakeOllamaAnswer,
                                               .write_error = &OllamaErrorBody,
                                               .stream_type = kLines,
                                               .body = {&OllamaFields, kOllamaChat}}};

constexpr EvaluationEndpoint kCalls[] = {
    {"/api/show", "OllamaShow", &ReadShow, {&OllamaFields, kOllamaShow}, &OllamaErrorBody}};

constexpr InfoEndpoint kInfo[] = {
    {.path = "/",
     .summary = "A fixed text, with which Ollama's clients check that the server runs.",
     .answer = &Root,
     .scope = std::nullopt,
     .write_error = &OllamaErrorBody},
    {.path = "/api/version",
     .summary = "The version of the server.",
     .answer = &Version,
     .write_error = &OllamaErrorBody},
    {.path = "/api/tags",
     .summary = "The model and its aliases in Ollama's format.",
     .answer = &Tags,
     .write_error = &OllamaErrorBody},
    {.path = "/api/ps",
     .summary = "The loaded model in Ollama's format.",
     .answer = &RunningModels,
     .write_error = &OllamaErrorBody}};

constexpr absl::string_view kOneModel = "; start the server with the model that you want";

constexpr RefusedPath kRefused[] = {
    {"/api/pull", "; run quire pull and start the server with that model", &OllamaErrorBody},
    {"/api/push", "", &OllamaErrorBody},
    {"/api/create", kOneModel, &OllamaErrorBody},
    {"/api/copy", "; set model.aliases for another name of the model", &OllamaErrorBody},
    {"/api/delete", kOneModel, &OllamaErrorBody},
    {"/api/blobs", kOneModel, &OllamaErrorBody},
    {"/api/embed", "; use /v1/embeddings", &OllamaErrorBody},
    {"/api/embeddings", "; use /v1/embeddings", &OllamaErrorBody}};

}  // namespace

EndpointTables OllamaTables() {
  return {.generation = kGeneration, .evaluation = kCalls, .info = kInfo, .refused = kRefused};
}

}  // namespace quire::server
