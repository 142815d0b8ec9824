#include "server/http/ops_handlers.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/status_mapping.h"
#include "server/http/http_credentials.h"
#include "server/http/http_host.h"

namespace quire::server {
namespace {

HttpAnswer Metrics(const probe::Registry& registry, const Authenticator& authenticator,
                   const HttpRequest& request) {
  const auto caller = authenticator.Authenticate(ReadCredentials(request), Scope::kMetrics);
  if (!caller.ok()) {
    const WireError error = ToWireError(caller.status());
    HttpAnswer answer{.status = error.http_status, .body = absl::StrCat(error.message, "\n")};
    if (error.http_status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
    return answer;
  }
  return MetricsAnswer(registry);
}

HttpAnswer Probe(bool good, absl::string_view reason) {
  return {.status = good ? 200 : 503, .body = absl::StrCat(good ? "ok" : reason, "\n")};
}

std::string PortUnresponsiveMessage(const char* port) {
  return absl::StrCat("the ", port, " port does not answer");
}

HttpAnswer Liveness(const ServingState& state) {
  std::string reason = "requests are waiting, but no step has ended in time";
  if (state.state() == LifeState::kFailed) {
    reason = "the engine has failed";
  } else if (const char* const port = state.unresponsive_listener()) {
    reason = PortUnresponsiveMessage(port);
  }
  return Probe(state.is_live(), reason);
}

}  // namespace

HttpAnswer MetricsAnswer(const probe::Registry& registry) {
  absl::StatusOr<std::string> text = registry.Expose();
  if (!text.ok()) {
    return {.status = 503, .body = absl::StrCat(text.status().message(), "\n")};
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = *std::move(text)};
}

HttpAnswer ReadinessAnswer(const ServingState& state) {
  std::string reason = "the engine is not alive";
  if (state.state() == LifeState::kLoading) {
    reason = "the model is loading";
  } else if (state.drain_started()) {
    reason = "the server is draining";
  } else if (const char* const port = state.unresponsive_listener()) {
    reason = PortUnresponsiveMessage(port);
  }
  return Probe(state.is_ready(), reason);
}

HttpHandlers MakeOpsHandlers(const ServingState* state, const probe::Registry* registry,
                             const Authenticator* authenticator, bool checks_host) {
  HttpHandlers handlers = {
      {"/livez", [state](const HttpRequest&) { return Liveness(*state); }},
      {"/readyz", [state](const HttpRequest&) { return ReadinessAnswer(*state); }},
      {"/startupz",
       [state](const HttpRequest&) { return Probe(state->is_started(), "the model is loading"); }}};
  if (registry != nullptr) {
    handlers["/metrics"] = [registry, authenticator, checks_host](const HttpRequest& request) {
      if (checks_host && !IsHostLocal(request)) return WrongHostAnswer();
      return Metrics(*registry, *authenticator, request);
    };
  }
  return handlers;
}

}  // namespace quire::server
