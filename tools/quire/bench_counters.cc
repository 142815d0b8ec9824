#include "tools/quire/bench_counters.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace quire::client {
namespace {

struct ClientCounts {
  double completed = 0, cancelled = 0, failed = 0;
  double input_tokens = 0, output_tokens = 0;
};

ClientCounts Count(const std::vector<RequestSample>& samples) {
  ClientCounts counts;
  for (const RequestSample& sample : samples) {
    counts.cancelled += sample.cancelled;
    counts.failed += !sample.cancelled && !sample.ok;
    counts.output_tokens += static_cast<double>(sample.output_tokens);
    if (sample.cancelled || !sample.ok) continue;
    counts.completed += 1;
    counts.input_tokens += static_cast<double>(sample.input_tokens);
  }
  return counts;
}

}  // namespace

ServerCounters ParseCounters(absl::string_view text) {
  ServerCounters counters;
  const std::pair<absl::string_view, double*> families[] = {
      {"quire_requests_accepted_total", &counters.accepted},
      {"quire_requests_completed_total", &counters.completed},
      {"quire_requests_failed_total", &counters.failed},
      {"quire_requests_cancelled_total", &counters.cancelled},
      {"quire_prompt_tokens_total", &counters.prompt_tokens},
      {"quire_generation_tokens_total", &counters.generation_tokens},
      {"quire_requests_running", &counters.running},
      {"quire_requests_waiting", &counters.waiting},
      {"quire_kv_cache_pages", &counters.used_pages}};
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const absl::string_view name = line.substr(0, line.find_first_of("{ "));
    const std::size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    for (const auto& [family, sum] : families) {
      if (name != family) continue;
      if (sum == &counters.used_pages && !absl::StrContains(line, "state=\"used\"")) continue;
      *sum += value;
    }
  }
  return counters;
}

std::vector<std::string> CheckConservation(const ServerCounters& before,
                                           const ServerCounters& after,
                                           const std::vector<RequestSample>& samples) {
  std::vector<std::string> violations;
  const auto expect = [&](bool holds, absl::string_view what, double server, double client) {
    if (!holds) violations.push_back(absl::StrCat(what, ": ", server, " and ", client));
  };
  const ClientCounts client = Count(samples);
  const double completed = after.completed - before.completed;
  const double ended =
      completed + after.failed - before.failed + after.cancelled - before.cancelled;
  const double accepted = after.accepted - before.accepted;
  const double prompt = after.prompt_tokens - before.prompt_tokens;
  const double generated = after.generation_tokens - before.generation_tokens;
  expect(accepted == ended, "requests accepted and ended", accepted, ended);
  expect(after.running + after.waiting == 0, "requests left running and waiting", after.running,
         after.waiting);
  expect(after.used_pages == before.used_pages, "pages in use after and before", after.used_pages,
         before.used_pages);
  // A request that the client cancelled may have completed on the server, if its last tokens were
  // already sent. With cancelled or failed requests, the server may therefore count more.
  const bool counts_all = client.cancelled + client.failed == 0;
  const auto compare = [&](absl::string_view what, double server, double counted) {
    expect(counts_all ? server == counted : server >= counted, what, server, counted);
  };
  compare("requests completed by the server and the client", completed, client.completed);
  compare("prompt tokens of the server and the client", prompt, client.input_tokens);
  compare("generated tokens of the server and the client", generated, client.output_tokens);
  return violations;
}

bool IsPermanentMismatch(const ServerCounters& before, const ServerCounters& after,
                         const std::vector<RequestSample>& samples) {
  const ClientCounts client = Count(samples);
  if (client.cancelled + client.failed > 0) return false;
  return after.completed - before.completed > client.completed ||
         after.prompt_tokens - before.prompt_tokens > client.input_tokens ||
         after.generation_tokens - before.generation_tokens > client.output_tokens;
}

}  // namespace quire::client
