#include "server/openai/openai_service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/logging.h"
#include "server/config/live_config.h"
#include "server/config/validator.h"
#include "server/http/http_credentials.h"
#include "server/http/http_host.h"
#include "server/openai/evaluation_call.h"
#include "server/openai/openai_call.h"
#include "server/openai/openapi.h"

namespace quire::server {
namespace {

// Workers for large bodies.
constexpr int kNumWorkers = 2;
constexpr std::size_t kMaxWaitingBodies = 1024;
// Maximum size of the body of a request that needs no token.
constexpr std::int64_t kMaxBytesWithoutToken = 512;

// Paths of OpenAI's API that are not served.
constexpr RefusedPath kRefused[] = {{"/v1/audio"},      {"/v1/images"},       {"/v1/moderations"},
                                    {"/v1/files"},      {"/v1/batches"},      {"/v1/fine_tuning"},
                                    {"/v1/assistants"}, {"/v1/threads"},      {"/v1/uploads"},
                                    {"/v1/realtime"},   {"/v1/vector_stores"}};

// Returns true if `path` is `parent` or below it.
bool IsBelow(absl::string_view path, absl::string_view parent) {
  return absl::ConsumePrefix(&path, parent) && (path.empty() || path[0] == '/');
}

// `pattern` is the path of an InfoEndpoint.
bool Matches(absl::string_view path, absl::string_view pattern) {
  const std::size_t wildcard = pattern.find('{');
  if (wildcard == pattern.npos) return path == pattern;
  return path.size() > wildcard && absl::StartsWith(path, pattern.substr(0, wildcard));
}

bool AreEqual(absl::string_view path, absl::string_view entry_path) {
  return path == entry_path;
}

// Returns the first entry whose path matches, or null. `list` is the member of EndpointTables that
// has the entries.
template <typename Entry>
const Entry* FindEntry(const std::vector<EndpointTables>& all,
                       std::span<const Entry> EndpointTables::*list, absl::string_view path,
                       bool (*matches)(absl::string_view path, absl::string_view entry_path)) {
  for (const EndpointTables& tables : all) {
    for (const Entry& entry : tables.*list) {
      if (matches(path, entry.path)) return &entry;
    }
  }
  return nullptr;
}

// Quotes at most 200 bytes of what the client sent, for an error message.
std::string Quoted(absl::string_view text) {
  return JsonQuoted(text.substr(0, 200));
}

HttpAnswer WrongMethod(absl::string_view method, absl::string_view allowed, WriteErrorBody write) {
  HttpAnswer answer = OpenAiError(
      Reason::kMethodNotAllowed,
      absl::StrCat("method ", Quoted(method), " is not allowed; use ", allowed), "method", write);
  answer.headers.emplace_back("Allow", std::string(allowed));
  return answer;
}

HttpAnswer ForeignOriginError(absl::string_view origin, WriteErrorBody write) {
  return OpenAiError(
      Reason::kOriginNotAllowed,
      absl::StrCat("origin ", Quoted(origin), " is not listed in openai.allowed_origins"), "origin",
      write);
}

HttpAnswer ForeignHostError(absl::string_view host, WriteErrorBody write) {
  return OpenAiError(
      Reason::kHostNotAllowed,
      absl::StrCat("the Host header ", Quoted(host), " is not an IP address or localhost; use one ",
                   "of these, or configure authentication"),
      "host", write);
}

// Checks the body of a request that needs no token. Returns an error if its length is unknown or
// above kMaxBytesWithoutToken.
std::optional<HttpAnswer> CheckBodyWithoutToken(const HttpRequest& head, WriteErrorBody write) {
  const absl::string_view length = head.Header("content-length");
  std::int64_t bytes = 0;
  if (absl::SimpleAtoi(length, &bytes) && bytes <= kMaxBytesWithoutToken) return std::nullopt;
  const std::string problem = length.empty() ? "no Content-Length" : absl::StrCat(length, " bytes");
  return OpenAiError(
      Reason::kInputTooLarge,
      absl::StrCat("the body has ", problem, ", ", Quoted(head.path), " allows at most ",
                   kMaxBytesWithoutToken, " bytes; send no body"),
      "", write);
}

HttpAnswer AddHeaders(HttpHeaders headers, HttpAnswer answer) {
  for (auto& header : headers) answer.headers.push_back(std::move(header));
  return answer;
}

}  // namespace

OpenAiService::OpenAiService(const HandlerContext& context, ServerIdentity server,
                             std::vector<EndpointTables> other_apis)
    : context_(context),
      server_(std::move(server)),
      tables_(std::move(other_apis)),
      worker_(kNumWorkers, kMaxWaitingBodies) {
  tables_.push_back({.generation = OpenAiEndpoints(),
                     .evaluation = EvaluationEndpoints(),
                     .info = OpenAiInfoEndpoints(),
                     .refused = kRefused});
  openapi_ = JsonText(OpenApiDocument(server_.version, tables_));
  const std::shared_ptr<const DaemonOptions> options = context.config->options();
  ListenAddress address;
  checks_host_ = options->auth.mode == AuthMode::kNone &&
                 ParseListenAddress(options->openai.listen, &address) && address.is_loopback();
}

const GenerationEndpoint* OpenAiService::FindGeneration(absl::string_view path) const {
  return FindEntry(tables_, &EndpointTables::generation, path, &AreEqual);
}

const EvaluationEndpoint* OpenAiService::FindEvaluation(absl::string_view path) const {
  return FindEntry(tables_, &EndpointTables::evaluation, path, &AreEqual);
}

const InfoEndpoint* OpenAiService::FindInfo(absl::string_view path) const {
  return FindEntry(tables_, &EndpointTables::info, path, &Matches);
}

const RefusedPath* OpenAiService::FindRefused(absl::string_view path) const {
  return FindEntry(tables_, &EndpointTables::refused, path, &IsBelow);
}

absl::string_view OpenAiService::MethodName(absl::string_view path) const {
  if (const GenerationEndpoint* const endpoint = FindGeneration(path)) return endpoint->method;
  const EvaluationEndpoint* const endpoint = FindEvaluation(path);
  return endpoint == nullptr ? "" : endpoint->method;
}

WriteErrorBody OpenAiService::ErrorWriter(absl::string_view path) const {
  if (const GenerationEndpoint* const endpoint = FindGeneration(path)) return endpoint->write_error;
  if (const EvaluationEndpoint* const endpoint = FindEvaluation(path)) return endpoint->write_error;
  if (const InfoEndpoint* const endpoint = FindInfo(path)) return endpoint->write_error;
  const RefusedPath* const refused = FindRefused(path);
  return refused == nullptr ? &OpenAiErrorBody : refused->write_error;
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
          {"Access-Control-Expose-Headers", "x-request-id, request-id, retry-after"},
          {"Vary", "Origin"}};
}

std::optional<HttpAnswer> OpenAiService::CheckHostAndOrigin(const HttpRequest& head) const {
  const WriteErrorBody write = ErrorWriter(head.path);
  if (checks_host_ && !IsHostLocal(head)) return ForeignHostError(head.Header("host"), write);
  const absl::string_view origin = head.Header("origin");
  if (!origin.empty() && !IsAllowed(head, origin)) return ForeignOriginError(origin, write);
  return std::nullopt;
}

std::optional<HttpAnswer> OpenAiService::CheckBeforeBody(const HttpRequest& head) const {
  std::optional<HttpAnswer> error = CheckHostAndOrigin(head);
  if (error) return error;
  std::optional<Identity> caller;
  error = CheckCall(head, &caller);
  if (!error && !caller) error = CheckBodyWithoutToken(head, ErrorWriter(head.path));
  if (!error) return std::nullopt;
  return AddHeaders(OriginHeaders(head), *std::move(error));
}

std::optional<HttpAnswer> OpenAiService::CheckCall(const HttpRequest& head,
                                                   std::optional<Identity>* caller) const {
  if (head.method == "OPTIONS") return std::nullopt;
  std::optional<Scope> scope = Scope::kGenerate;
  if (!MethodName(head.path).empty()) {
    if (head.method != "POST") {
      return WrongMethod(head.method, "POST", ErrorWriter(head.path));
    }
  } else {
    const InfoEndpoint* const endpoint = FindInfo(head.path);
    if (endpoint == nullptr) return UnknownEndpoint(head.path);
    const bool reads = head.method == "GET" || head.method == "HEAD";
    if (!reads && !(endpoint->allows_post && head.method == "POST")) {
      return WrongMethod(head.method, endpoint->allows_post ? "GET, HEAD, POST" : "GET, HEAD",
                         endpoint->write_error);
    }
    scope = endpoint->scope;
  }
  if (!scope) return std::nullopt;
  absl::StatusOr<Identity> identity = Authorize(head, *scope);
  if (!identity.ok()) return Refuse(head, identity.status());
  *caller = *std::move(identity);
  return std::nullopt;
}

HttpAnswer OpenAiService::RejectBeforeRead(Reason reason, absl::string_view message,
                                           const HttpRequest& request) const {
  HttpAnswer answer = OpenAiError(reason, message, "", ErrorWriter(request.path));
  if (answer.status == 503) answer.headers.emplace_back("Retry-After", "1");
  return AddHeaders(OriginHeaders(request), std::move(answer));
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
  std::optional<Identity> caller;
  error = CheckCall(request, &caller);
  if (error) return exchange->Answer(AddHeaders(std::move(headers), *std::move(error)));
  if (request.method == "OPTIONS") {
    return exchange->Answer(Preflight(request, std::move(headers)));
  }
  if (MethodName(request.path).empty()) {
    return exchange->Answer(AddHeaders(std::move(headers), AnswerInfo(request)));
  }
  Post(exchange, *std::move(caller), std::move(headers));
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

HttpAnswer OpenAiService::UnknownEndpoint(absl::string_view path) const {
  const absl::string_view shown = path.substr(0, 200);
  const RefusedPath* const refused = FindRefused(path);
  if (refused == nullptr) {
    return OpenAiError(
        Reason::kUnknownEndpoint,
        absl::StrCat("endpoint ", shown, " does not exist; GET /openapi.json lists all"), "path");
  }
  return OpenAiError(Reason::kFeatureUnsupported,
                     absl::StrCat(shown, " is not supported", refused->remedy), "path",
                     refused->write_error);
}

// REQUIRES: the path is that of an InfoEndpoint.
HttpAnswer OpenAiService::AnswerInfo(const HttpRequest& request) const {
  const InfoEndpoint* const endpoint = FindInfo(request.path);
  auto answer =
      endpoint->answer({.handlers = context_, .server = server_, .openapi = openapi_}, request);
  return answer.ok() ? *std::move(answer) : OpenAiError(answer.status(), {}, endpoint->write_error);
}

absl::StatusOr<Identity> OpenAiService::Authorize(const HttpRequest& request, Scope scope) const {
  auto caller = context_.authenticator->Authenticate(ReadCredentials(request), scope);
  if (!caller.ok()) {
    log::Info("auth", "call refused",
              {{"method", request.path}, {"reason", caller.status().message()}});
  }
  return caller;
}

void OpenAiService::Post(const std::shared_ptr<HttpExchange>& exchange, Identity caller,
                         HttpHeaders headers) {
  const HttpRequest& request = exchange->request();
  std::string id(request.Header("x-request-id"));
  CallInfo info = {.principal = std::move(caller.principal),
                   .tenant = std::move(caller.tenant),
                   .metadata_request_id = "",
                   .accept_time = context_.clock->Now()};
  std::string traceparent(request.Header("traceparent"));
  if (const EvaluationEndpoint* const endpoint = FindEvaluation(request.path)) {
    id = ChooseRequestId(id, kLongestItemSuffix);
    headers.emplace_back("x-request-id", id);
    if (!endpoint->id_header.empty()) headers.emplace_back(std::string(endpoint->id_header), id);
    info.metadata_request_id = std::move(id);
    EvaluationCall::Head head = {.endpoint = endpoint,
                                 .info = std::move(info),
                                 .traceparent = std::move(traceparent),
                                 .headers = std::move(headers),
                                 .unknown_fields = &unknown_fields_};
    std::make_shared<EvaluationCall>(context_, exchange, std::move(head), &worker_)
        ->Begin(exchange->TakeBody());
    return;
  }
  OpenAiCallHead head = {.endpoint = FindGeneration(request.path),
                         .info = std::move(info),
                         .request_id = std::move(id),
                         .traceparent = std::move(traceparent),
                         .headers = std::move(headers),
                         .unknown_fields = &unknown_fields_};
  std::make_shared<OpenAiCall>(context_, exchange, std::move(head))
      ->Begin(exchange->TakeBody(), &worker_);
}

}  // namespace quire::server
