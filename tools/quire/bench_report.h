#pragma once

// Metrics of `quire bench`. Requests are measured on the client's monotonic clock. The summary has
// the field names of `vllm bench serve`, so that existing scripts can read it.
//
// Definitions (docs/operations.md). TTFT: from sending the request to the first message with a
// token. E2E: from sending the request to receiving its status. TPOT: (last token - first token) /
// (n - 1), for n >= 2 tokens in at least two messages. ITL: time between consecutive messages with
// tokens. ITL per token: that time divided by the tokens of the later message, counted once per
// token. An answer without a token has no TTFT.
// Threads: any.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::client {

struct RequestSample {
  bool ok = false;
  bool cancelled = false;  // cancelled by this client on purpose; neither completed nor failed
  std::string error;       // why the request is not `ok`; from quired, "REASON: message"
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t messages = 0;  // messages with tokens
  double start_seconds = 0;   // after the start of the run
  double ttft_seconds = 0;
  double e2e_seconds = 0;
  double first_to_last_token_seconds = 0;
  std::vector<double> itl_seconds;
  std::vector<std::int64_t> itl_tokens;  // tokens of the message that ends each interval
  double late_seconds = 0;               // open loop: delay after the planned send time
};

// The latencies of completed requests, as defined above.
struct LatencySeconds {
  std::vector<double> ttft, tpot, itl, itl_per_token, e2e;
};
void AddLatencies(const RequestSample& sample, LatencySeconds* latencies);

// Latency limits of goodput, in seconds.
struct ServiceLevel {
  std::optional<double> ttft, tpot, e2e;
  bool is_set() const { return ttft.has_value() || tpot.has_value() || e2e.has_value(); }
};
// Parses "ttft=500ms,tpot=50ms,e2e=10s". Returns INVALID_ARGUMENT with the problem.
absl::StatusOr<ServiceLevel> ParseServiceLevel(absl::string_view text);

struct BenchRun {
  std::string backend = "quire";  // "quire", "openai" or "llamacpp"
  std::string model_id;
  std::int64_t concurrency = 0;  // closed loop
  double request_rate = 0;       // open loop; 0 for the closed loop
  double burstiness = 1;
  double duration_seconds = 0;
  bool interrupted = false;  // not all requests were sent
  ServiceLevel service_level = {};
  std::int64_t peak_pss_bytes = 0;  // peak memory of the server; 0: not measured
  std::vector<RequestSample> samples;
};

// Interpolates linearly between closest ranks, like numpy's default. REQUIRES: `sorted` is
// ascending and not empty; p in [0, 100].
double Percentile(const std::vector<double>& sorted, double p);

// Returns the report as one JSON object, or as a table.
std::string ReportJson(const BenchRun& run);
std::string ReportTable(const BenchRun& run);

// Compares rounds of the same load on quired and on another server: {"rounds": N, "ours": [...],
// "peer": [...], "median": {"ours": {...}, "peer": {...}, "ratio": {...}}}. A ratio is ours / peer,
// and is absent if the peer's median is 0. If rounds are missing, "interrupted": true is added.
// REQUIRES: equally many runs of both servers, at least one.
std::string ComparisonJson(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                           bool interrupted = false);
std::string ComparisonTable(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                            bool interrupted = false);

}  // namespace quire::client
