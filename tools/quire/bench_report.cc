#include "tools/quire/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/json_text.h"

namespace quire::client {
namespace {

using nlohmann::ordered_json;

struct Distribution {
  double mean = 0;
  double median = 0;
  double std = 0;
  double max = 0;
  std::vector<std::pair<std::string, double>> percentiles;
};

constexpr std::pair<const char*, double> kPercentiles[] = {
    {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}};

// In the open loop, a request counts as late if it is sent with a longer delay than this.
constexpr double kLateSeconds = 0.01;

// Converts seconds to milliseconds. Returns zeros if there are no values.
Distribution Describe(std::vector<double> seconds) {
  Distribution result;
  if (seconds.empty()) {
    for (const auto& [name, p] : kPercentiles) result.percentiles.emplace_back(name, 0.0);
    return result;
  }
  std::sort(seconds.begin(), seconds.end());
  const auto count = static_cast<double>(seconds.size());
  result.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double x : seconds) squares += (x - result.mean) * (x - result.mean);
  result.std = 1e3 * std::sqrt(squares / count);
  result.mean *= 1e3;
  result.median = 1e3 * Percentile(seconds, 50);
  result.max = 1e3 * seconds.back();
  for (const auto& [name, p] : kPercentiles) {
    result.percentiles.emplace_back(name, 1e3 * Percentile(seconds, p));
  }
  return result;
}

struct Summary {
  std::int64_t completed = 0, failed = 0, cancelled = 0, input_tokens = 0, output_tokens = 0;
  std::int64_t messages = 0, good = 0, late = 0;
  double latest_seconds = 0;
  Distribution ttft, tpot, itl, itl_per_token, e2e;
};

// Returns false if the tokens arrived in a single message.
bool HasTimePerOutputToken(const RequestSample& sample) {
  return sample.output_tokens > 1 && sample.messages > 1;
}

double TimePerOutputToken(const RequestSample& sample) {
  return sample.first_to_last_token_seconds / static_cast<double>(sample.output_tokens - 1);
}

bool Meets(const ServiceLevel& level, const RequestSample& sample) {
  if (level.ttft && (sample.messages == 0 || sample.ttft_seconds > *level.ttft)) return false;
  if (level.tpot && HasTimePerOutputToken(sample) && TimePerOutputToken(sample) > *level.tpot) {
    return false;
  }
  return !level.e2e || sample.e2e_seconds <= *level.e2e;
}

Summary Summarize(const BenchRun& run) {
  Summary summary;
  LatencySeconds latencies;
  for (const RequestSample& sample : run.samples) {
    summary.late += sample.late_seconds > kLateSeconds;
    summary.latest_seconds = std::max(summary.latest_seconds, sample.late_seconds);
    if (sample.cancelled) {
      ++summary.cancelled;
      continue;
    }
    if (!sample.ok) {
      ++summary.failed;
      continue;
    }
    ++summary.completed;
    summary.input_tokens += sample.input_tokens;
    summary.output_tokens += sample.output_tokens;
    summary.messages += sample.messages;
    summary.good += Meets(run.service_level, sample);
    AddLatencies(sample, &latencies);
  }
  summary.ttft = Describe(std::move(latencies.ttft));
  summary.tpot = Describe(std::move(latencies.tpot));
  summary.itl = Describe(std::move(latencies.itl));
  summary.itl_per_token = Describe(std::move(latencies.itl_per_token));
  summary.e2e = Describe(std::move(latencies.e2e));
  return summary;
}

void AddDistribution(const char* name, const Distribution& d, ordered_json* json) {
  (*json)[absl::StrCat("mean_", name, "_ms")] = d.mean;
  (*json)[absl::StrCat("median_", name, "_ms")] = d.median;
  (*json)[absl::StrCat("std_", name, "_ms")] = d.std;
  (*json)[absl::StrCat("max_", name, "_ms")] = d.max;
  for (const auto& [percentile, value] : d.percentiles) {
    (*json)[absl::StrCat(percentile, "_", name, "_ms")] = value;
  }
}

double PerSecond(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

void AddOpenLoop(const BenchRun& run, const Summary& summary, ordered_json* json) {
  if (run.request_rate <= 0) {
    (*json)["max_concurrency"] = run.concurrency;
    (*json)["request_rate"] = "inf";
    return;
  }
  (*json)["max_concurrency"] = nullptr;
  (*json)["request_rate"] = run.request_rate;
  (*json)["burstiness"] = run.burstiness;
  (*json)["late_sends"] = summary.late;
  (*json)["max_send_delay_ms"] = 1e3 * summary.latest_seconds;
}

ordered_json Report(const BenchRun& run) {
  const Summary summary = Summarize(run);
  ordered_json json;
  json["date"] = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone());
  json["backend"] = run.backend;
  json["model_id"] = run.model_id;
  if (run.interrupted) json["interrupted"] = true;
  json["num_prompts"] = run.samples.size();
  AddOpenLoop(run, summary, &json);
  json["duration"] = run.duration_seconds;
  json["completed"] = summary.completed;
  json["failed"] = summary.failed;
  json["cancelled"] = summary.cancelled;
  json["total_input_tokens"] = summary.input_tokens;
  json["total_output_tokens"] = summary.output_tokens;
  json["request_throughput"] = PerSecond(summary.completed, run.duration_seconds);
  if (run.service_level.is_set()) {
    json["request_goodput"] = PerSecond(summary.good, run.duration_seconds);
  }
  json["output_throughput"] = PerSecond(summary.output_tokens, run.duration_seconds);
  json["total_token_throughput"] =
      PerSecond(summary.input_tokens + summary.output_tokens, run.duration_seconds);
  json["tokens_per_message"] = summary.messages > 0 ? static_cast<double>(summary.output_tokens) /
                                                          static_cast<double>(summary.messages)
                                                    : 0.0;
  AddDistribution("ttft", summary.ttft, &json);
  AddDistribution("tpot", summary.tpot, &json);
  AddDistribution("itl", summary.itl, &json);
  AddDistribution("itl_per_token", summary.itl_per_token, &json);
  AddDistribution("e2el", summary.e2e, &json);
  if (run.peak_pss_bytes > 0) json["peak_pss_bytes"] = run.peak_pss_bytes;
  return json;
}

std::vector<ordered_json> Reports(const std::vector<BenchRun>& runs) {
  std::vector<ordered_json> reports;
  reports.reserve(runs.size());
  for (const BenchRun& run : runs) reports.push_back(Report(run));
  return reports;
}

// Returns the median over the rounds of every number that all rounds have.
ordered_json Medians(const std::vector<ordered_json>& reports) {
  ordered_json medians;
  for (const auto& [key, first] : reports.front().items()) {
    std::vector<double> values;
    for (const ordered_json& report : reports) {
      if (report.contains(key) && report[key].is_number()) values.push_back(report[key]);
    }
    if (values.size() != reports.size()) continue;
    std::sort(values.begin(), values.end());
    medians[key] = Percentile(values, 50);
  }
  return medians;
}

ordered_json Comparison(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                        bool interrupted) {
  ordered_json json;
  json["rounds"] = ours.size();
  if (interrupted) json["interrupted"] = true;
  json["ours"] = Reports(ours);
  json["peer"] = Reports(peer);
  const ordered_json our_medians = Medians(json["ours"].get<std::vector<ordered_json>>());
  const ordered_json peer_medians = Medians(json["peer"].get<std::vector<ordered_json>>());
  ordered_json ratios = ordered_json::object();
  for (const auto& [key, value] : our_medians.items()) {
    if (!peer_medians.contains(key) || peer_medians[key].get<double>() == 0) continue;
    ratios[key] = value.get<double>() / peer_medians[key].get<double>();
  }
  json["median"] = {{"ours", our_medians}, {"peer", peer_medians}, {"ratio", ratios}};
  return json;
}

}  // namespace

void AddLatencies(const RequestSample& sample, LatencySeconds* latencies) {
  if (sample.messages > 0) latencies->ttft.push_back(sample.ttft_seconds);
  if (HasTimePerOutputToken(sample)) latencies->tpot.push_back(TimePerOutputToken(sample));
  for (std::size_t i = 0; i < sample.itl_seconds.size(); ++i) {
    const std::int64_t tokens = i < sample.itl_tokens.size() ? sample.itl_tokens[i] : 1;
    latencies->itl.push_back(sample.itl_seconds[i]);
    latencies->itl_per_token.insert(latencies->itl_per_token.end(),
                                    static_cast<std::size_t>(tokens),
                                    sample.itl_seconds[i] / static_cast<double>(tokens));
  }
  latencies->e2e.push_back(sample.e2e_seconds);
}

double Percentile(const std::vector<double>& sorted, double p) {
  const double position = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

absl::StatusOr<ServiceLevel> ParseServiceLevel(absl::string_view text) {
  ServiceLevel level;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::optional<double>* const limit = halves.first == "ttft"   ? &level.ttft
                                         : halves.first == "tpot" ? &level.tpot
                                         : halves.first == "e2e"  ? &level.e2e
                                                                  : nullptr;
    absl::Duration duration;
    if (limit == nullptr || !absl::ParseDuration(halves.second, &duration) ||
        duration <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part,
                       "\" is not ttft=TIME, tpot=TIME or e2e=TIME, such as "
                       "ttft=500ms,tpot=50ms"));
    }
    *limit = absl::ToDoubleSeconds(duration);
  }
  return level;
}

std::string ReportJson(const BenchRun& run) {
  return JsonText(Report(run));
}

std::string ReportTable(const BenchRun& run) {
  const Summary summary = Summarize(run);
  std::string out = absl::StrFormat(
      "model %s  %s  %.2f s\n%d completed, %d failed", run.model_id,
      run.request_rate > 0 ? absl::StrFormat("%.2f requests/s offered", run.request_rate)
                           : absl::StrFormat("concurrency %d", run.concurrency),
      run.duration_seconds, summary.completed, summary.failed);
  if (run.interrupted) out += ", interrupted";
  if (summary.cancelled > 0) absl::StrAppendFormat(&out, ", %d cancelled", summary.cancelled);
  if (summary.late > 0) {
    absl::StrAppendFormat(&out, ", %d sent late (by up to %.0f ms)", summary.late,
                          1e3 * summary.latest_seconds);
  }
  absl::StrAppendFormat(
      &out, "  %.2f requests/s  %.1f output tokens/s  %.1f tokens/s\n",
      PerSecond(summary.completed, run.duration_seconds),
      PerSecond(summary.output_tokens, run.duration_seconds),
      PerSecond(summary.input_tokens + summary.output_tokens, run.duration_seconds));
  if (run.service_level.is_set()) {
    absl::StrAppendFormat(&out, "goodput %.2f requests/s\n",
                          PerSecond(summary.good, run.duration_seconds));
  }
  if (run.peak_pss_bytes > 0) {
    absl::StrAppendFormat(&out, "peak memory of the server %.1f MiB\n",
                          static_cast<double>(run.peak_pss_bytes) / (1 << 20));
  }
  if (summary.completed == 0)
    return absl::StrCat(out, "no request completed, so there are no latencies\n");
  absl::StrAppendFormat(&out, "%-9s %10s %10s %10s %10s %10s %10s %10s   (ms)\n", "", "mean", "p50",
                        "p90", "p95", "p99", "p99.9", "max");
  const std::pair<const char*, const Distribution*> rows[] = {{"TTFT", &summary.ttft},
                                                              {"TPOT", &summary.tpot},
                                                              {"ITL", &summary.itl},
                                                              {"ITL/token", &summary.itl_per_token},
                                                              {"E2E", &summary.e2e}};
  for (const auto& [name, distribution] : rows) {
    absl::StrAppendFormat(&out, "%-9s %10.2f", name, distribution->mean);
    for (const auto& [percentile, value] : distribution->percentiles) {
      absl::StrAppendFormat(&out, " %10.2f", value);
    }
    absl::StrAppendFormat(&out, " %10.2f\n", distribution->max);
  }
  return out;
}

std::string ComparisonJson(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                           bool interrupted) {
  return JsonText(Comparison(ours, peer, interrupted));
}

std::string ComparisonTable(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                            bool interrupted) {
  const ordered_json median = Comparison(ours, peer, interrupted)["median"];
  std::string out = absl::StrFormat("medians of %d alternating rounds%s\n%-26s %14s %14s %10s\n",
                                    ours.size(), interrupted ? ", interrupted" : "", "", "quire",
                                    peer.front().backend, "ratio");
  for (const char* const key :
       {"completed", "failed", "request_throughput", "request_goodput", "output_throughput",
        "total_token_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms",
        "p50_itl_ms", "p99_itl_ms", "max_itl_ms", "p50_e2el_ms", "p99_e2el_ms", "peak_pss_bytes"}) {
    if (!median["ours"].contains(key) || !median["peer"].contains(key)) continue;
    absl::StrAppendFormat(&out, "%-26s %14.2f %14.2f", key, median["ours"][key].get<double>(),
                          median["peer"][key].get<double>());
    if (median["ratio"].contains(key)) {
      absl::StrAppendFormat(&out, " %10.3f", median["ratio"][key].get<double>());
    }
    out += "\n";
  }
  return out;
}

}  // namespace quire::client
