#include "server/http/status_handlers.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "engine/engine.h"
#include "server/api/status_mapping.h"
#include "server/http/http_credentials.h"
#include "server/http/http_host.h"
#include "server/http/status_page.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

ordered_json MakeRuns(const std::vector<std::int32_t>& pages) {
  ordered_json runs = ordered_json::array();
  for (std::size_t begin = 0; begin < pages.size();) {
    std::size_t end = begin + 1;
    while (end < pages.size() && pages[end] == pages[begin]) ++end;
    runs.push_back({pages[begin], end - begin});
    begin = end;
  }
  return runs;
}

// Returns the number of requests by tenant and state.
ordered_json MakeQueueJson(const std::vector<engine::RequestInfo>& requests) {
  std::map<std::string, std::map<std::string, int>> counts;
  for (const engine::RequestInfo& request : requests) {
    ++counts[request.tenant][std::string(engine::RequestStateName(request.state))];
  }
  ordered_json queue = ordered_json::array();
  for (const auto& [tenant, states] : counts) {
    queue.push_back({{"tenant", tenant}, {"states", states}});
  }
  return queue;
}

ordered_json MakeModelJson(const ServedModel& model) {
  const ModelDescription& description = model.description;
  return {{"id", model.id()},
          {"architecture", description.architecture},
          {"quantization", description.quantization},
          {"parameters", description.parameter_count},
          {"max_context_tokens", description.max_context_tokens},
          {"device", model.device.name},
          {"kv_dtype", description.kv_dtype}};
}

// Returns nullopt while another request waits for a snapshot, so that a thread stays free for
// probes.
std::optional<engine::PageSnapshot> TryGetSnapshot(const StatusSources& sources,
                                                   engine::Engine* engine) {
  if (sources.is_snapshot_pending->exchange(true)) return std::nullopt;
  struct PendingFlag {
    ~PendingFlag() { flag->store(false); }
    std::atomic<bool>* flag;
  } const pending{sources.is_snapshot_pending.get()};
  absl::StatusOr<engine::PageSnapshot> snapshot = engine->GetPageSnapshot();
  if (!snapshot.ok()) return std::nullopt;
  return *std::move(snapshot);
}

HttpAnswer StatusAnswer(const StatusSources& sources, const HttpRequest& request) {
  if (sources.checks_host && !IsHostLocal(request)) return WrongHostAnswer();
  const auto caller =
      sources.authenticator->Authenticate(ReadCredentials(request), Scope::kMetrics);
  if (!caller.ok()) {
    const WireError error = ToWireError(caller.status());
    HttpAnswer answer{.status = error.http_status, .body = absl::StrCat(error.message, "\n")};
    if (error.http_status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
    return answer;
  }
  if (!sources.is_open && caller->principal.empty()) {
    return {.status = 403,
            .body = "without authentication the status is shown on loopback addresses only\n"};
  }
  return {.content_type = "application/json",
          .body = StatusJson(sources, sources.state->model(), MonotonicNow()),
          .headers = {{"Cache-Control", "no-store"}}};
}

HttpAnswer PageAnswer() {
  const std::vector<EmbeddedFile> files = StatusPageFiles();
  QUIRE_CHECK(files.size() == 1);
  return {.content_type = "text/html; charset=utf-8",
          .body = std::string(reinterpret_cast<const char*>(files[0].bytes.data()),
                              files[0].bytes.size()),
          .headers = {{"Cache-Control", "no-cache"},
                      {"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "connect-src *; img-src data:; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

}  // namespace

std::string StatusJson(const StatusSources& sources, const ServedModel* model, absl::Time now) {
  const LifeState state = sources.state->state();
  const bool is_pre_drain = sources.state->drain_started() && state == LifeState::kReady;
  ordered_json status = {
      {"version", sources.version},
      {"state", is_pre_drain ? "pre_drain" : LifeStateName(state)},
      {"uptime_seconds", absl::ToDoubleSeconds(now - sources.start_time)},
      {"openai", sources.openai_address.empty() ? ordered_json(nullptr)
                                                : ordered_json{{"address", sources.openai_address},
                                                               {"tls", sources.openai_has_tls}}}};
  if (model != nullptr) {
    const engine::EngineStats stats = model->engine->GetStats();
    status["model"] = MakeModelJson(*model);
    status["requests"] = {{"running", stats.running}, {"waiting", stats.waiting}};
    status["tokens_per_second"] = {{"prompt", stats.prompt_tokens_per_second},
                                   {"generation", stats.generation_tokens_per_second}};
    status["queue"] = MakeQueueJson(model->engine->ListRequests());
    const std::optional<engine::PageSnapshot> snapshot = TryGetSnapshot(sources, model->engine);
    if (snapshot.has_value()) {
      status["pages"] = {{"page_size", model->description.kv_page_size},
                         {"owners", snapshot->owners},
                         {"runs", MakeRuns(snapshot->pages)}};
    }
  }
  return JsonText(status);
}

void AddStatusHandlers(const StatusSources& sources, HttpHandlers* handlers) {
  (*handlers)["/"] = [](const HttpRequest&) { return PageAnswer(); };
  (*handlers)["/status.json"] = [sources](const HttpRequest& request) {
    return StatusAnswer(sources, request);
  };
}

}  // namespace quire::server
