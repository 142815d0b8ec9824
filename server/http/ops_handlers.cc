#include "server/http/ops_handlers.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire::server {
namespace {

HttpAnswer Metrics(const probe::Registry& registry) {
  absl::StatusOr<std::string> text = registry.Expose();
  if (!text.ok()) {
    return {.status = 503, .body = absl::StrCat(text.status().message(), "\n")};
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = *std::move(text)};
}

HttpAnswer Probe(bool good, absl::string_view reason) {
  return {.status = good ? 200 : 503, .body = absl::StrCat(good ? "ok" : reason, "\n")};
}

HttpAnswer Liveness(const ServingState& state) {
  return Probe(state.is_live(), state.state() == LifeState::kFailed
                                    ? "the engine has failed"
                                    : "work waits, but no step has ended in time");
}

HttpAnswer Readiness(const ServingState& state) {
  absl::string_view reason = "the engine is not alive";
  if (state.state() == LifeState::kLoading) {
    reason = "the model is loading";
  } else if (state.leaving()) {
    reason = "the server is draining";
  }
  return Probe(state.is_ready(), reason);
}

HttpAnswer Startup(const ServingState& state) {
  return Probe(state.is_started(), "the model is loading");
}

}  // namespace

HttpHandlers MakeOpsHandlers(const ServingState* state, const probe::Registry* registry) {
  HttpHandlers handlers = {{"/livez", [state] { return Liveness(*state); }},
                           {"/readyz", [state] { return Readiness(*state); }},
                           {"/startupz", [state] { return Startup(*state); }}};
  if (registry != nullptr) {
    handlers["/metrics"] = [registry] { return Metrics(*registry); };
  }
  return handlers;
}

}  // namespace quire::server
