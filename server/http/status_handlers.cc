#include "server/http/status_handlers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// Returns one array per statistic, with the current value as last element.
ordered_json MakeHistoryJson(std::vector<StatusSample> samples, const StatusSample& current) {
  samples.push_back(current);
  const auto make_array = [&](const auto& read) {
    ordered_json values = ordered_json::array();
    for (const StatusSample& sample : samples) values.push_back(read(sample));
    return values;
  };
  const auto round = [](double value) { return std::round(value * 10) / 10; };
  return {{"age_seconds", make_array([&](const StatusSample& sample) {
             return round(absl::ToDoubleSeconds(current.time - sample.time));
           })},
          {"generation_tokens_per_second", make_array([&](const StatusSample& sample) {
             return round(sample.stats.generation_tokens_per_second);
           })},
          {"prompt_tokens_per_second", make_array([&](const StatusSample& sample) {
             return round(sample.stats.prompt_tokens_per_second);
           })},
          {"running", make_array([](const StatusSample& sample) { return sample.stats.running; })},
          {"waiting", make_array([](const StatusSample& sample) { return sample.stats.waiting; })},
          {"cache_usage", make_array([](const StatusSample& sample) {
             return std::round(sample.stats.cache.used_pages * 1e4 /
                               std::max(1u, sample.stats.cache.usable_pages)) /
                    1e4;
           })},
          {"hit_tokens",
           make_array([](const StatusSample& sample) { return sample.stats.cache.hit_tokens; })},
          {"queried_tokens", make_array([](const StatusSample& sample) {
             return sample.stats.cache.queried_tokens;
           })}};
}

ordered_json MakeModelJson(const ServedModel& model) {
  const ModelDescription& description = model.description;
  return {{"id", model.id()},
          {"architecture", description.architecture},
          {"quantization", description.quantization},
          {"parameters", description.parameter_count},
          {"max_context_tokens", description.max_context_tokens},
          {"device", model.device.name},
          {"kv_dtype", description.kv_dtype},
          {"has_head", description.has_head},
          {"chat_problem", model.translator.ChatProblem()}};
}

// Returns nullopt if another request is waiting for a snapshot, or if the snapshot fails. At most
// one thread waits, so that the other threads can answer probes.
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
          .body = StatusJson(sources, sources.state->model(), MonotonicNow())};
}

// Returns the page with its style sheet and scripts inside.
std::string MakePage() {
  const std::vector<EmbeddedFile> files = StatusPageFiles();
  QUIRE_CHECK(!files.empty());
  std::string page;
  for (const EmbeddedFile& file : files) {
    const absl::string_view text(reinterpret_cast<const char*>(file.bytes.data()),
                                 file.bytes.size());
    if (page.empty()) {
      page = std::string(text);
      continue;
    }
    const std::string style = absl::StrCat("<link rel=\"stylesheet\" href=\"", file.name, "\">");
    const std::string script = absl::StrCat("<script src=\"", file.name, "\"></script>");
    const int num_replaced =
        absl::StrReplaceAll({{style, absl::StrCat("<style>\n", text, "</style>")},
                             {script, absl::StrCat("<script>\n", text, "</script>")}},
                            &page);
    QUIRE_CHECK(num_replaced == 1);
  }
  return page;
}

HttpAnswer PageAnswer(const std::string& page) {
  return {.content_type = "text/html; charset=utf-8",
          .body = page,
          .headers = {{"Content-Security-Policy",
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
  const absl::Time drain_deadline =
      sources.drain == nullptr ? absl::InfiniteFuture() : sources.drain->deadline();
  status["drain_seconds_left"] =
      drain_deadline == absl::InfiniteFuture()
          ? ordered_json(nullptr)
          : ordered_json(std::max(0.0, absl::ToDoubleSeconds(drain_deadline - now)));
  if (model != nullptr) {
    status["model"] = MakeModelJson(*model);
    status["history"] = MakeHistoryJson(
        sources.history == nullptr ? std::vector<StatusSample>() : sources.history->samples(),
        {now, model->engine->GetStats()});
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
  (*handlers)["/"] = [page = MakePage()](const HttpRequest&) { return PageAnswer(page); };
  (*handlers)["/status.json"] = [sources](const HttpRequest& request) {
    return StatusAnswer(sources, request);
  };
}

}  // namespace quire::server
