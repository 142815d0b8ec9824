#pragma once

// What a load test sends: when each request goes out, what its prompt is, how long its answer and
// whether it is cancelled. A request is a function of the options and its number alone, so that two
// servers get the same load.
//
// Place:   behind `quire bench`; knows nothing of servers.
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
  std::int64_t low = 1;   // fixed: the length; uniform: the least
  std::int64_t high = 1;  // uniform and log-normal: the most
  double median = 1;      // log-normal
  double sigma = 0;       // log-normal: standard deviation of the logarithm
};

// "128", "uniform:LOW:HIGH" or "lognormal:MEDIAN:SIGMA:MOST". INVALID_ARGUMENT otherwise, with what
// is wrong.
absl::StatusOr<LengthDistribution> ParseLengths(absl::string_view text);
std::int64_t SampleLength(const LengthDistribution& lengths, Random& random);

enum class Arrival {
  kClosed,   // the next when one has ended
  kPoisson,  // exponential gaps
  kGamma,  // gaps of gamma distribution with shape `burstiness`; 1 is Poisson, below 1 is burstier
  kConstant,  // equal gaps
};

// One request of a trace file.
struct TraceEntry {
  double seconds = 0;  // after the first
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<std::int64_t>
      block_ids;  // equal ids are equal blocks of 512 tokens of the prompt; may be empty
};

struct LoadOptions {
  Arrival arrival = Arrival::kClosed;
  double rate = 0;  // requests per second, of the open loop
  double burstiness = 1;
  LengthDistribution input = {};
  LengthDistribution output = {};
  // `prefix_share` of the prompts begin with one of `prefix_count` texts of `prefix_tokens`. A
  // prompt keeps the length drawn for it: a shorter one begins with a part of the text, and its
  // last token is its own.
  std::int64_t prefix_count = 1;
  std::int64_t prefix_tokens = 0;
  double prefix_share = 1;
  double cancel_ratio = 0;
  // An object of JSON that `schema_share` of the answers are valid by; empty: all are free.
  std::string schema = {};
  double schema_share = 1;
  std::uint64_t seed = 1;
};

struct LoadRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t output_tokens = 0;
  std::int64_t cancel_after = 0;  // tokens; 0: not cancelled
  std::string schema = {};        // that the answer is valid by; empty: it is free
};

class Workload {
 public:
  // REQUIRES: vocab_size >= 1. A trace that is not empty replaces arrival and lengths.
  Workload(const LoadOptions& options, std::int32_t vocab_size, std::vector<TraceEntry> trace = {});

  bool is_open() const { return options_.arrival != Arrival::kClosed || !trace_.empty(); }

  // Request `number`; any number of 0 or more, for a trace below its length.
  LoadRequest Request(std::int64_t number) const;
  // Seconds from the start at which requests 0 .. count - 1 go out, ascending. REQUIRES: is_open().
  std::vector<double> SendTimes(std::int64_t count) const;

 private:
  void AppendTokens(std::uint64_t stream, std::int64_t count, std::vector<std::int32_t>* out) const;
  LoadRequest FromTrace(std::int64_t number) const;

  LoadOptions options_;
  std::int32_t vocab_size_;
  std::vector<TraceEntry> trace_;
};

}  // namespace quire::client
