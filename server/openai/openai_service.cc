#include "server/openai/openai_service.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status.h"
#include "server/config/live_config.h"
#include "server/config/validator.h"
#include "server/http/http_credentials.h"
#include "server/http/http_host.h"
#include "server/http/ops_handlers.h"
#include "server/openai/openai_call.h"
#include "server/openai/openai_error.h"
#include "server/openai/openai_request.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kModelsPath = "/v1/models";
constexpr absl::string_view kCompletionsPath = "/v1/completions";
constexpr absl::string_view kChatPath = "/v1/chat/completions";

// The name of a generating endpoint in metrics and logs; "" for others.
absl::string_view MethodOf(absl::string_view path) {
  if (path == kCompletionsPath) return "Completions";
  return path == kChatPath ? "ChatCompletions" : "";
}

// Parts of OpenAI's API, and of its imitators', that this build lacks, with what is behind them.
constexpr absl::string_view kMissing[] = {
    "/v1/embeddings", "/v1/responses", "/v1/audio",       "/v1/images",   "/v1/moderations",
    "/v1/files",      "/v1/batches",   "/v1/fine_tuning", "/v1/rerank",   "/v1/score",
    "/v1/assistants", "/v1/threads",   "/v1/uploads",     "/v1/realtime", "/v1/vector_stores"};

bool IsMissing(absl::string_view path) {
  return std::any_of(std::begin(kMissing), std::end(kMissing), [&](absl::string_view prefix) {
    return path == prefix || absl::StartsWith(path, absl::StrCat(prefix, "/"));
  });
}

HttpAnswer UnknownEndpoint(absl::string_view path) {
  if (IsMissing(path)) return OpenAiError(FeatureUnsupported(path, "path"));
  return OpenAiError(404, "UNKNOWN_ENDPOINT",
                     absl::StrCat("there is no ", path.substr(0, 200), " here"), "path");
}

HttpAnswer WrongMethod(absl::string_view allowed) {
  HttpAnswer answer =
      OpenAiError(405, "METHOD_NOT_ALLOWED", absl::StrCat("use ", allowed), "method");
  answer.headers.emplace_back("Allow", std::string(allowed));
  return answer;
}

HttpAnswer OriginError() {
  return OpenAiError(403, "ORIGIN", "this origin is not among openai.allowed_origins", "origin");
}

HttpAnswer HostError() {
  return OpenAiError(403, "HOST",
                     "without authentication a loopback address is asked by address or as "
                     "localhost only",
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

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// The project throws nothing, but libraries below may: an allocation above all.
absl::StatusOr<OpenAiRequest> ParseBody(bool is_chat, const std::string& body) {
  try {
    return is_chat ? ParseChatRequest(body) : ParseCompletionRequest(body);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("body: ", error.what()));
  }
}

void Append(HttpHeaders headers, HttpAnswer* answer) {
  for (auto& header : headers) answer->headers.push_back(std::move(header));
}

bool IsStatusPage(absl::string_view origin, absl::string_view host, int port) {
  if (!absl::ConsumePrefix(&origin, "http://") && !absl::ConsumePrefix(&origin, "https://")) {
    return false;
  }
  ListenAddress page, here;
  return port != 0 && ParseListenAddress(origin, &page) && ParseListenAddress(host, &here) &&
         !page.is_unix && !here.is_unix && page.port == port && page.host == here.host &&
         IsLocalName(page.host);
}

}  // namespace

OpenAiService::OpenAiService(const HandlerContext& context) : context_(context) {
  const std::shared_ptr<const DaemonOptions> options = context.config->options();
  ListenAddress address;
  checks_host_ = options->auth.mode == AuthMode::kNone &&
                 ParseListenAddress(options->openai.listen, &address) && address.is_loopback();
}

bool OpenAiService::IsAllowed(const HttpRequest& request, absl::string_view origin) const {
  if (IsStatusPage(origin, request.Header("host"), status_page_port_.load())) return true;
  const std::shared_ptr<const DaemonOptions> options = context_.config->options();
  const std::vector<std::string>& origins = options->openai.allowed_origins;
  return std::find(origins.begin(), origins.end(), origin) != origins.end();
}

std::optional<HttpAnswer> OpenAiService::Refusal(const HttpRequest& head) const {
  if (checks_host_ && !NamesThisMachine(head)) return HostError();
  const absl::string_view origin = head.Header("origin");
  if (!origin.empty() && !IsAllowed(head, origin)) return OriginError();
  const auto caller = Authorize(head);
  if (caller.ok()) return std::nullopt;
  return Refuse(head, caller.status());
}

// The error, counted as the end of the call.
HttpAnswer OpenAiService::Refuse(const HttpRequest& request, const absl::Status& status) const {
  const absl::Status sealed = Seal(status);
  const absl::string_view method = MethodOf(request.path);
  if (!method.empty()) {
    const WireError error = ToWireError(sealed);
    context_.probe->CountRefused(error.reason);
    context_.probe->CountRpc(method, error.code);
  }
  return OpenAiError(sealed);
}

void OpenAiService::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (checks_host_ && !NamesThisMachine(request)) return exchange->Answer(HostError());
  const absl::string_view origin = request.Header("origin");
  HttpHeaders headers;
  // Only browsers send it, and they let a page read an answer only if the answer names its origin.
  if (!origin.empty()) {
    if (!IsAllowed(request, origin)) return exchange->Answer(OriginError());
    headers = {{"Access-Control-Allow-Origin", std::string(origin)},
               {"Access-Control-Expose-Headers", "x-request-id, retry-after"},
               {"Vary", "Origin"}};
  }
  if (request.method == "OPTIONS") {
    return exchange->Answer(Preflight(request, std::move(headers)));
  }
  if (!MethodOf(request.path).empty()) {
    if (request.method == "POST") return Post(exchange, std::move(headers));
    HttpAnswer answer = WrongMethod("POST");
    Append(std::move(headers), &answer);
    return exchange->Answer(std::move(answer));
  }
  HttpAnswer answer = Get(request);
  Append(std::move(headers), &answer);
  exchange->Answer(std::move(answer));
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
  if (request.method != "GET" && request.method != "HEAD") return WrongMethod("GET, HEAD");
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
    answer.body = Dump(ModelObject(**served, name.empty() ? (*served)->id() : std::string(name)));
    return answer;
  }
  ordered_json list = ordered_json::array({ModelObject(**served, (*served)->id())});
  const auto options = (*served)->translator.options();
  for (const std::string& alias : options->aliases) {
    list.push_back(ModelObject(**served, alias));
  }
  answer.body = Dump({{"object", "list"}, {"data", std::move(list)}});
  return answer;
}

absl::StatusOr<Identity> OpenAiService::Authorize(const HttpRequest& request) const {
  auto caller = context_.authenticator->Authenticate(ReadCredentials(request), Scope::kGenerate);
  if (!caller.ok()) {
    log::Info("auth", "call refused",
              {{"method", request.path}, {"why", caller.status().message()}});
  }
  return caller;
}

void OpenAiService::Post(const std::shared_ptr<HttpExchange>& exchange, HttpHeaders headers) {
  const HttpRequest& request = exchange->request();
  const auto refuse = [&](const absl::Status& status) {
    HttpAnswer answer = Refuse(request, status);
    Append(std::move(headers), &answer);
    exchange->Answer(std::move(answer));
  };
  const auto caller = Authorize(request);
  if (!caller.ok()) return refuse(caller.status());
  auto parsed = ParseBody(request.path == kChatPath, exchange->TakeBody());
  if (!parsed.ok()) return refuse(parsed.status());
  std::string id(request.Header("x-request-id"));
  if (id.empty()) id = NewRequestId();
  // As the last prompt's will be.
  const std::size_t others = parsed->prompts.size() - 1;
  const absl::Status wellformed =
      CheckRequestId(others == 0 ? id : absl::StrCat(id, "-", others), "x-request-id");
  if (!wellformed.ok()) return refuse(wellformed);
  CallInfo info;
  info.principal = caller->principal;
  info.tenant = caller->tenant;
  info.accept_time = context_.clock->Now();
  std::make_shared<OpenAiCall>(context_, exchange, MethodOf(request.path), std::move(headers))
      ->Begin(*std::move(parsed), info, id, std::string(request.Header("traceparent")));
}

}  // namespace quire::server
