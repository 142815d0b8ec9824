#include "tools/quire/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire::client {
namespace {

struct Distribution {
  double mean = 0;
  double median = 0;
  double std = 0;
  std::vector<std::pair<std::string, double>> percentiles;
};

constexpr std::pair<const char*, double> kPercentiles[] = {
    {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}};

// In milliseconds. All zero without values.
Distribution Describe(std::vector<double> seconds) {
  Distribution result;
  if (seconds.empty()) return result;
  std::sort(seconds.begin(), seconds.end());
  const auto count = static_cast<double>(seconds.size());
  result.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double x : seconds) squares += (x - result.mean) * (x - result.mean);
  result.std = 1e3 * std::sqrt(squares / count);
  result.mean *= 1e3;
  result.median = 1e3 * Percentile(seconds, 50);
  for (const auto& [name, p] : kPercentiles) {
    result.percentiles.emplace_back(name, 1e3 * Percentile(seconds, p));
  }
  return result;
}

struct Summary {
  std::int64_t completed = 0, failed = 0, input_tokens = 0, output_tokens = 0;
  Distribution ttft, tpot, itl, e2e;
};

Summary Summarise(const BenchRun& run) {
  Summary summary;
  std::vector<double> ttft, tpot, itl, e2e;
  for (const RequestSample& sample : run.samples) {
    if (!sample.ok) {
      ++summary.failed;
      continue;
    }
    ++summary.completed;
    summary.input_tokens += sample.input_tokens;
    summary.output_tokens += sample.output_tokens;
    if (sample.output_tokens > 0) ttft.push_back(sample.ttft_seconds);
    if (sample.output_tokens > 1) {
      tpot.push_back(sample.first_to_last_token_seconds /
                     static_cast<double>(sample.output_tokens - 1));
    }
    itl.insert(itl.end(), sample.itl_seconds.begin(), sample.itl_seconds.end());
    e2e.push_back(sample.e2e_seconds);
  }
  summary.ttft = Describe(std::move(ttft));
  summary.tpot = Describe(std::move(tpot));
  summary.itl = Describe(std::move(itl));
  summary.e2e = Describe(std::move(e2e));
  return summary;
}

void AddDistribution(const char* name, const Distribution& d, nlohmann::ordered_json* json) {
  (*json)[absl::StrCat("mean_", name, "_ms")] = d.mean;
  (*json)[absl::StrCat("median_", name, "_ms")] = d.median;
  (*json)[absl::StrCat("std_", name, "_ms")] = d.std;
  for (const auto& [percentile, value] : d.percentiles) {
    (*json)[absl::StrCat(percentile, "_", name, "_ms")] = value;
  }
}

double PerSecond(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double p) {
  const double position = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

std::string ReportJson(const BenchRun& run) {
  const Summary summary = Summarise(run);
  nlohmann::ordered_json json;
  json["date"] = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone());
  json["backend"] = "quire";
  json["model_id"] = run.model_id;
  json["num_prompts"] = run.samples.size();
  json["max_concurrency"] = run.concurrency;
  json["request_rate"] = "inf";
  json["duration"] = run.duration_seconds;
  json["completed"] = summary.completed;
  json["failed"] = summary.failed;
  json["total_input_tokens"] = summary.input_tokens;
  json["total_output_tokens"] = summary.output_tokens;
  json["request_throughput"] = PerSecond(summary.completed, run.duration_seconds);
  json["output_throughput"] = PerSecond(summary.output_tokens, run.duration_seconds);
  json["total_token_throughput"] =
      PerSecond(summary.input_tokens + summary.output_tokens, run.duration_seconds);
  AddDistribution("ttft", summary.ttft, &json);
  AddDistribution("tpot", summary.tpot, &json);
  AddDistribution("itl", summary.itl, &json);
  AddDistribution("e2el", summary.e2e, &json);
  return json.dump();
}

std::string ReportTable(const BenchRun& run) {
  const Summary summary = Summarise(run);
  std::string out = absl::StrFormat(
      "model %s  concurrency %d  %.2f s\n%d completed, %d failed  %.2f requests/s  %.1f output "
      "tokens/s  "
      "%.1f tokens/s\n%-6s %10s %10s %10s %10s %10s %10s   (ms)\n",
      run.model_id, run.concurrency, run.duration_seconds, summary.completed, summary.failed,
      PerSecond(summary.completed, run.duration_seconds),
      PerSecond(summary.output_tokens, run.duration_seconds),
      PerSecond(summary.input_tokens + summary.output_tokens, run.duration_seconds), "", "mean",
      "p50", "p90", "p95", "p99", "p99.9");
  const std::pair<const char*, const Distribution*> rows[] = {{"TTFT", &summary.ttft},
                                                              {"TPOT", &summary.tpot},
                                                              {"ITL", &summary.itl},
                                                              {"E2E", &summary.e2e}};
  for (const auto& [name, distribution] : rows) {
    absl::StrAppendFormat(&out, "%-6s %10.2f", name, distribution->mean);
    for (const auto& [percentile, value] : distribution->percentiles) {
      absl::StrAppendFormat(&out, " %10.2f", value);
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace quire::client
