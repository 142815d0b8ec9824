#pragma once

// The figures of `quire bench`: what one request showed on the client's monotonic clock, and their
// summary in the field names of `vllm bench serve`, so that existing scripts can plot it.
//
// Definitions (docs/operations.md): TTFT is request sent to first message with a token; E2E is
// request sent to status received; TPOT is (last token - first token) / (n - 1) for n >= 2; ITL is
// the gap between consecutive messages with tokens. Threads: none of its own.

#include <cstdint>
#include <string>
#include <vector>

namespace quire::client {

struct RequestSample {
  bool ok = false;
  std::string error;  // CODE/REASON: message
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  double ttft_seconds = 0;
  double e2e_seconds = 0;
  double first_to_last_token_seconds = 0;
  std::vector<double> itl_seconds;
};

struct BenchRun {
  std::string model_id;
  std::int64_t concurrency = 0;
  double duration_seconds = 0;
  std::vector<RequestSample> samples;
};

// Linear interpolation between closest ranks (numpy's default); `sorted` ascending, not empty; p in
// [0, 100].
double Percentile(const std::vector<double>& sorted, double p);

// One JSON object, and the same as a table for people.
std::string ReportJson(const BenchRun& run);
std::string ReportTable(const BenchRun& run);

}  // namespace quire::client
