#pragma once

// The load of a benchmark: send times, prompts, answer lengths and cancellations. A request depends
// only on the options and its number, so that two servers get the same load.
//
// Place:   used by `quire bench`; independent of servers.
// Threads: a Workload is immutable.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::client {

using Random = std::mt19937_64;

// A number of tokens, at least 1.
struct LengthDistribution {
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind = Kind::kFixed;
  std::int64_t low = 1;   // fixed: the length; uniform: the minimum
  std::int64_t high = 1;  // uniform and log-normal: the maximum
  double median = 1;      // log-normal
  double sigma = 0;       // log-normal: standard deviation of the logarithm
};

// Parses "128", "uniform:LOW:HIGH" or "lognormal:MEDIAN:SIGMA:MAX". Returns INVALID_ARGUMENT with
// the problem.
absl::StatusOr<LengthDistribution> ParseLengths(absl::string_view text);
std::int64_t SampleLength(const LengthDistribution& lengths, Random& random);

enum class Arrival {
  kClosed,    // each client sends its next request when its previous one has ended
  kPoisson,   // exponential intervals
  kGamma,     // gamma-distributed intervals of shape `burstiness`; 1: Poisson, below 1: burstier
  kConstant,  // equal intervals
};

// One request of a trace file.
struct TraceEntry {
  double seconds = 0;  // time after the first request
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  // One id per 512 prompt tokens. Equal ids mean equal tokens. May be empty.
  std::vector<std::int64_t> block_ids;
};

struct LoadOptions {
  Arrival arrival = Arrival::kClosed;
  double rate = 0;  // requests per second of the open loop
  double burstiness = 1;
  LengthDistribution input = {};
  LengthDistribution output = {};
  // A fraction `prefix_share` of the prompts begins with one of `prefix_count` prefixes of
  // `prefix_tokens` tokens. The length of a prompt does not change: a prompt that is too short
  // begins with a part of the prefix. The last token of a prompt is never part of the prefix.
  std::int64_t prefix_count = 1;
  std::int64_t prefix_tokens = 0;
  double prefix_share = 1;
  double cancel_ratio = 0;
  // JSON Schema for a fraction `schema_share` of the answers; empty: none.
  std::string schema = {};
  double schema_share = 1;
  std::uint64_t seed = 1;
  // Changes the tokens of all prompts. Lengths, send times and cancellations stay the same.
  std::uint64_t round = 0;
};

struct LoadRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t output_tokens = 0;
  std::int64_t cancel_after = 0;  // cancel after this many tokens; 0: never
  std::string schema = {};        // JSON Schema of the answer; empty: none
};

class Workload {
 public:
  // REQUIRES: vocab_size >= 1. A trace that is not empty replaces arrival and lengths.
  Workload(const LoadOptions& options, std::int32_t vocab_size, std::vector<TraceEntry> trace = {});

  bool is_open() const { return options_.arrival != Arrival::kClosed || !trace_.empty(); }

  // Returns request `number` >= 0. For a trace, `number` must be below its length.
  LoadRequest Request(std::int64_t number) const;
  // Returns the send times of requests 0 .. count - 1 in seconds, ascending. REQUIRES: is_open().
  std::vector<double> SendTimes(std::int64_t count) const;

 private:
  void AppendTokens(std::uint64_t stream, std::int64_t count, std::vector<std::int32_t>* out) const;
  LoadRequest FromTrace(std::int64_t number) const;

  LoadOptions options_;
  std::int32_t vocab_size_;
  std::vector<TraceEntry> trace_;
};

}  // namespace quire::client
