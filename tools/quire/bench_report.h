#pragma once

// The figures of `quire bench`: what one request showed on the client's monotonic clock, and their
// summary in the field names of `vllm bench serve`, so that existing scripts can plot it.
//
// Definitions (docs/operations.md): TTFT is request sent to first message with a token; E2E is
// request sent to status received; TPOT is (last token - first token) / (n - 1) for n >= 2 tokens
// in two messages or more; ITL is the gap between consecutive messages with tokens; ITL per token
// is that gap divided by the tokens of the message that ends it, counted once per token. An answer
// of which no message had a token has no TTFT. Threads: none of its own.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::client {

struct RequestSample {
  bool ok = false;
  bool cancelled = false;  // by this client, as planned; counts neither as completed nor as failed
  std::string error;       // CODE/REASON: message
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t messages = 0;  // that carried tokens
  double ttft_seconds = 0;
  double e2e_seconds = 0;
  double first_to_last_token_seconds = 0;
  std::vector<double> itl_seconds;
  std::vector<std::int64_t> itl_tokens;  // of the message that ends each gap
  double late_seconds = 0;               // open loop: sent this much after its time
};

// Limits that a request must keep to count as goodput; seconds.
struct ServiceLevel {
  std::optional<double> ttft, tpot, e2e;
  bool is_set() const { return ttft.has_value() || tpot.has_value() || e2e.has_value(); }
};
// "ttft=500ms,tpot=50ms,e2e=10s". INVALID_ARGUMENT otherwise, with what is wrong.
absl::StatusOr<ServiceLevel> ParseServiceLevel(absl::string_view text);

struct BenchRun {
  std::string backend = "quire";  // or "openai", "llamacpp"
  std::string model_id;
  std::int64_t concurrency = 0;  // closed loop
  double request_rate = 0;       // open loop; 0: closed
  double burstiness = 1;
  double duration_seconds = 0;
  bool interrupted = false;  // not all requests were sent
  ServiceLevel service_level = {};
  std::int64_t peak_pss_bytes = 0;  // of the server; 0: not measured
  std::vector<RequestSample> samples;
};

// Linear interpolation between closest ranks (numpy's default); `sorted` ascending, not empty; p in
// [0, 100].
double Percentile(const std::vector<double>& sorted, double p);

// One JSON object, and the same as a table for people.
std::string ReportJson(const BenchRun& run);
std::string ReportTable(const BenchRun& run);

// Rounds of the same load on our server and on another one, in turn: {"rounds": N, "ours": [...],
// "peer": [...], "median": {"ours": {...}, "peer": {...}, "ratio": {...}}}, ratio = ours / peer,
// absent where the peer's median is 0; "interrupted": true where rounds are missing. REQUIRES: as
// many of one as of the other, at least one.
std::string ComparisonJson(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                           bool interrupted = false);
std::string ComparisonTable(const std::vector<BenchRun>& ours, const std::vector<BenchRun>& peer,
                            bool interrupted = false);

}  // namespace quire::client
