#include "server/openai/openai_service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/logging.h"
#include "server/config/live_config.h"
#include "server/config/validator.h"
#include "server/http/http_credentials.h"
#include "server/http/http_host.h"
#include "server/http/ops_handlers.h"
#include "server/openai/evaluation_bodies.h"
#include "server/openai/evaluation_call.h"
#include "server/openai/openai_call.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kModelsPath = "/v1/models";

// Workers for large bodies.
constexpr int kNumWorkers = 2;
constexpr std::size_t kMaxWaitingBodies = 1024;

// Parts of OpenAI's API that are not supported, including all paths below them.
constexpr absl::string_view kUnsupportedPaths[] = {
    "/v1/audio",   "/v1/images",      "/v1/moderations",  "/v1/files",
    "/v1/batches", "/v1/fine_tuning", "/v1/assistants",   "/v1/threads",
    "/v1/uploads", "/v1/realtime",    "/v1/vector_stores"};

bool IsUnsupported(absl::string_view path) {
  return std::any_of(std::begin(kUnsupportedPaths), std::end(kUnsupportedPaths),
                     [&](absl::string_view prefix) {
                       return path == prefix || absl::StartsWith(path, absl::StrCat(prefix, "/"));
                     });
}

HttpAnswer UnknownEndpoint(absl::string_view path) {
  if (IsUnsupported(path)) return OpenAiError(FeatureUnsupported(path, "path"));
  return OpenAiError(Reason::kUnknownEndpoint,
                     absl::StrCat("endpoint ", path.substr(0, 200),
                                  " does not exist; use an endpoint such as /v1/completions"),
                     "path");
}

// Quotes at most 200 bytes of what the client sent, for an error message.
std::string Quoted(absl::string_view text) {
  return JsonQuoted(text.substr(0, 200));
}

HttpAnswer WrongMethod(absl::string_view method, absl::string_view allowed) {
  HttpAnswer answer = OpenAiError(
      Reason::kMethodNotAllowed,
      absl::StrCat("method ", Quoted(method), " is not allowed; use ", allowed), "method");
  answer.headers.emplace_back("Allow", std::string(allowed));
  return answer;
}

HttpAnswer ForeignOriginError(absl::string_view origin) {
  return OpenAiError(
      Reason::kOriginNotAllowed,
      absl::StrCat("origin ", Quoted(origin), " is not listed in openai.allowed_origins"),
      "origin");
}

HttpAnswer ForeignHostError(absl::string_view host) {
  return OpenAiError(
      Reason::kHostNotAllowed,
      absl::StrCat("the Host header ", Quoted(host), " is not an IP address or localhost; use one ",
                   "of these, or configure authentication"),
      "host");
}

ordered_json ModelObject(const ServedModel& served, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(served.description.load_time)},
          {"owned_by", "quire"},
          {"root", served.id()},
          {"max_model_len", served.description.max_context_tokens}};
}

HttpAnswer AddHeaders(HttpHeaders headers, HttpAnswer answer) {
  for (auto& header : headers) answer.headers.push_back(std::move(header));
  return answer;
}

}  // namespace

OpenAiService::OpenAiService(const HandlerContext& context,
                             std::span<const GenerationEndpoint> more)
    : context_(context), more_(more), worker_(kNumWorkers, kMaxWaitingBodies) {
  const std::shared_ptr<const DaemonOptions> options = context.config->options();
  ListenAddress address;
  checks_host_ = options->auth.mode == AuthMode::kNone &&
                 ParseListenAddress(options->openai.listen, &address) && address.is_loopback();
}

const GenerationEndpoint* OpenAiService::FindEndpoint(absl::string_view path) const {
  for (const std::span<const GenerationEndpoint> endpoints : {OpenAiEndpoints(), more_}) {
    for (const GenerationEndpoint& endpoint : endpoints) {
      if (endpoint.path == path) return &endpoint;
    }
  }
  return nullptr;
}

absl::string_view OpenAiService::MethodName(absl::string_view path) const {
  if (const GenerationEndpoint* const endpoint = FindEndpoint(path)) return endpoint->method;
  const EvaluationEndpoint* const endpoint = FindEvaluationEndpoint(path);
  return endpoint == nullptr ? "" : endpoint->method;
}

WriteErrorBody OpenAiService::ErrorWriter(absl::string_view path) const {
  const GenerationEndpoint* const endpoint = FindEndpoint(path);
  return endpoint == nullptr ? &OpenAiErrorBody : endpoint->write_error;
}

bool OpenAiService::IsAllowed(const HttpRequest& request, absl::string_view origin) const {
  const int status_page_port = status_page_port_.load();
  if (status_page_port != 0 && IsOwnPage(origin, request, status_page_port)) return true;
  const std::shared_ptr<const DaemonOptions> options = context_.config->options();
  const std::vector<std::string>& origins = options->openai.allowed_origins;
  return std::find(origins.begin(), origins.end(), origin) != origins.end();
}

// Returns the CORS headers. A browser lets a page read an answer only if the answer names the
// page's origin.
HttpHeaders OpenAiService::OriginHeaders(const HttpRequest& request) const {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty() || !IsAllowed(request, origin)) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Access-Control-Expose-Headers", "x-request-id, retry-after"},
          {"Vary", "Origin"}};
}

std::optional<HttpAnswer> OpenAiService::CheckHostAndOrigin(const HttpRequest& head) const {
  if (checks_host_ && !IsHostLocal(head)) return ForeignHostError(head.Header("host"));
  const absl::string_view origin = head.Header("origin");
  if (!origin.empty() && !IsAllowed(head, origin)) return ForeignOriginError(origin);
  return std::nullopt;
}

std::optional<HttpAnswer> OpenAiService::CheckBeforeBody(const HttpRequest& head) const {
  std::optional<HttpAnswer> error = CheckHostAndOrigin(head);
  if (error) return error;
  const auto caller = Authorize(head);
  if (caller.ok()) return std::nullopt;
  return AddHeaders(OriginHeaders(head), Refuse(head, caller.status()));
}

HttpAnswer OpenAiService::RejectBeforeRead(Reason reason, absl::string_view message,
                                           const HttpRequest& request) const {
  return AddHeaders(OriginHeaders(request),
                    RefuseAsOpenAi(reason, message, ErrorWriter(request.path)));
}

// Counts the call as ended with this error, and returns the error.
HttpAnswer OpenAiService::Refuse(const HttpRequest& request, const absl::Status& status) const {
  const absl::Status sanitized = SanitizeInternalError(status);
  const absl::string_view method = MethodName(request.path);
  if (!method.empty()) {
    const WireError error = ToWireError(sanitized);
    context_.probe->CountRefused(error.reason);
    context_.probe->CountRpc(method, error.code);
  }
  return OpenAiError(sanitized, {}, ErrorWriter(request.path));
}

void OpenAiService::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  std::optional<HttpAnswer> error = CheckHostAndOrigin(request);
  if (error) return exchange->Answer(*std::move(error));
  HttpHeaders headers = OriginHeaders(request);
  if (request.method == "OPTIONS") {
    return exchange->Answer(Preflight(request, std::move(headers)));
  }
  const bool generates = !MethodName(request.path).empty();
  if (generates && request.method == "POST") return Post(exchange, std::move(headers));
  exchange->Answer(AddHeaders(std::move(headers),
                              generates ? WrongMethod(request.method, "POST") : Get(request)));
}

HttpAnswer OpenAiService::Preflight(const HttpRequest& request, HttpHeaders headers) const {
  HttpAnswer answer{.status = 200, .body = "", .headers = std::move(headers)};
  answer.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const absl::string_view wanted = request.Header("access-control-request-headers");
  if (!wanted.empty()) {
    answer.headers.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
  }
  answer.headers.emplace_back("Access-Control-Max-Age", "600");
  return answer;
}

HttpAnswer OpenAiService::Get(const HttpRequest& request) const {
  const absl::string_view path = request.path;
  const bool is_health = path == "/health";
  if (!is_health && path != kModelsPath && !absl::StartsWith(path, "/v1/models/")) {
    return UnknownEndpoint(path);
  }
  if (request.method != "GET" && request.method != "HEAD")
    return WrongMethod(request.method, "GET, HEAD");
  return is_health ? ReadinessAnswer(*context_.state) : Models(request);
}

HttpAnswer OpenAiService::Models(const HttpRequest& request) const {
  const auto caller = Authorize(request);
  if (!caller.ok()) return OpenAiError(caller.status());
  const auto served = context_.state->ModelOrError();
  if (!served.ok()) return OpenAiError(served.status());
  absl::string_view name = request.path;
  HttpAnswer answer{.content_type = "application/json", .body = ""};
  if (absl::ConsumePrefix(&name, "/v1/models/")) {
    const absl::Status known = (*served)->translator.CheckModel(name);
    if (!known.ok()) return OpenAiError(known);
    answer.body =
        JsonText(ModelObject(**served, name.empty() ? (*served)->id() : std::string(name)));
    return answer;
  }
  ordered_json list = ordered_json::array({ModelObject(**served, (*served)->id())});
  const auto options = (*served)->translator.options();
  for (const std::string& alias : options->aliases) {
    list.push_back(ModelObject(**served, alias));
  }
  answer.body = JsonText(ordered_json{{"object", "list"}, {"data", std::move(list)}});
  return answer;
}

absl::StatusOr<Identity> OpenAiService::Authorize(const HttpRequest& request) const {
  auto caller = context_.authenticator->Authenticate(ReadCredentials(request), Scope::kGenerate);
  if (!caller.ok()) {
    log::Info("auth", "call refused",
              {{"method", request.path}, {"reason", caller.status().message()}});
  }
  return caller;
}

void OpenAiService::Post(const std::shared_ptr<HttpExchange>& exchange, HttpHeaders headers) {
  const HttpRequest& request = exchange->request();
  const auto caller = Authorize(request);
  if (!caller.ok()) {
    return exchange->Answer(AddHeaders(std::move(headers), Refuse(request, caller.status())));
  }
  std::string id(request.Header("x-request-id"));
  if (const EvaluationEndpoint* const endpoint = FindEvaluationEndpoint(request.path)) {
    id = ChooseRequestId(id, kLongestItemSuffix);
    headers.emplace_back("x-request-id", id);
    EvaluationCall::Head head;
    head.endpoint = endpoint;
    head.traceparent = std::string(request.Header("traceparent"));
    head.headers = std::move(headers);
    head.unknown_fields = &unknown_fields_;
    head.info.principal = caller->principal;
    head.info.tenant = caller->tenant;
    head.info.metadata_request_id = std::move(id);
    head.info.accept_time = context_.clock->Now();
    std::make_shared<EvaluationCall>(context_, exchange, std::move(head), &worker_)
        ->Begin(exchange->TakeBody());
    return;
  }
  OpenAiCallHead head;
  head.endpoint = FindEndpoint(request.path);
  head.info.principal = caller->principal;
  head.info.tenant = caller->tenant;
  head.info.accept_time = context_.clock->Now();
  head.request_id = std::move(id);
  head.traceparent = std::string(request.Header("traceparent"));
  head.headers = std::move(headers);
  head.unknown_fields = &unknown_fields_;
  std::make_shared<OpenAiCall>(context_, exchange, std::move(head))
      ->Begin(exchange->TakeBody(), &worker_);
}

}  // namespace quire::server
