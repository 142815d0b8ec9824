#include "tools/quire/bench_load.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/split_mix.h"

namespace quire::client {
namespace {

constexpr std::int64_t kMaxTokens = 10'000'000;
constexpr std::int64_t kBlockTokens = 512;  // block size of traces with block ids

// Identifiers of the random streams of requests, shared texts and send times.
constexpr std::uint64_t kRequestStream = 0;
constexpr std::uint64_t kPrefixStream = std::uint64_t{1} << 62;
constexpr std::uint64_t kBlockStream = std::uint64_t{2} << 62;
constexpr std::uint64_t kArrivalStream = std::uint64_t{3} << 62;

// Hashes seed and stream, so that neighbouring values yield unrelated states.
Random MakeRandom(std::uint64_t seed, std::uint64_t stream) {
  return Random(SplitMix(SplitMix(seed) ^ stream));
}

double Fraction(Random& random) {
  return std::uniform_real_distribution<double>(0.0, 1.0)(random);
}

absl::Status BadLengths(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\": ", why, "; use a number, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX"));
}

}  // namespace

absl::StatusOr<LengthDistribution> ParseLengths(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const auto tokens = [](const std::string& part, std::int64_t* value) {
    return absl::SimpleAtoi(part, value) && *value >= 1 && *value <= kMaxTokens;
  };
  LengthDistribution lengths;
  if (parts.size() == 1) {
    if (!tokens(parts[0], &lengths.low))
      return BadLengths(text, "the length is not between 1 and 10000000");
    lengths.high = lengths.low;
    return lengths;
  }
  if (parts[0] == "uniform" && parts.size() == 3) {
    lengths.kind = LengthDistribution::Kind::kUniform;
    if (!tokens(parts[1], &lengths.low) || !tokens(parts[2], &lengths.high) ||
        lengths.low > lengths.high) {
      return BadLengths(text, "LOW and HIGH must be between 1 and 10000000, and LOW at most HIGH");
    }
    return lengths;
  }
  if (parts[0] == "lognormal" && parts.size() == 4) {
    lengths.kind = LengthDistribution::Kind::kLogNormal;
    if (!absl::SimpleAtod(parts[1], &lengths.median) || !(lengths.median >= 1) ||
        !absl::SimpleAtod(parts[2], &lengths.sigma) || !(lengths.sigma >= 0) ||
        !(lengths.sigma <= 10) || !tokens(parts[3], &lengths.high) ||
        lengths.median > static_cast<double>(lengths.high)) {
      return BadLengths(text, "MEDIAN must be between 1 and MAX, and SIGMA between 0 and 10");
    }
    return lengths;
  }
  return BadLengths(text, "unknown distribution");
}

std::int64_t SampleLength(const LengthDistribution& lengths, Random& random) {
  switch (lengths.kind) {
    case LengthDistribution::Kind::kFixed:
      return lengths.low;
    case LengthDistribution::Kind::kUniform:
      return std::uniform_int_distribution<std::int64_t>(lengths.low, lengths.high)(random);
    case LengthDistribution::Kind::kLogNormal:
      break;
  }
  const double drawn = lengths.sigma > 0 ? std::lognormal_distribution<double>(
                                               std::log(lengths.median), lengths.sigma)(random)
                                         : lengths.median;
  return std::clamp<std::int64_t>(std::llround(std::min(drawn, static_cast<double>(lengths.high))),
                                  1, lengths.high);
}

Workload::Workload(const LoadOptions& options, std::int32_t vocab_size,
                   std::vector<TraceEntry> trace)
    : options_(options), vocab_size_(vocab_size), trace_(std::move(trace)) {}

void Workload::AppendTokens(std::uint64_t stream, std::int64_t count,
                            std::vector<std::int32_t>* out) const {
  Random random = MakeRandom(options_.seed + options_.round * 1'000'003, stream);
  for (std::int64_t i = 0; i < count; ++i) {
    out->push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab_size_)));
  }
}

LoadRequest Workload::FromTrace(std::int64_t number) const {
  const TraceEntry& entry = trace_[static_cast<std::size_t>(number)];
  LoadRequest request{.prompt = {}, .output_tokens = entry.output_tokens};
  for (const std::int64_t id : entry.block_ids) {
    const std::int64_t left = entry.input_tokens - static_cast<std::int64_t>(request.prompt.size());
    AppendTokens(kBlockStream + static_cast<std::uint64_t>(id), std::min(left, kBlockTokens),
                 &request.prompt);
  }
  const std::int64_t left = entry.input_tokens - static_cast<std::int64_t>(request.prompt.size());
  AppendTokens(kRequestStream + static_cast<std::uint64_t>(number), left, &request.prompt);
  return request;
}

LoadRequest Workload::Request(std::int64_t number) const {
  const auto stream = static_cast<std::uint64_t>(number);
  LoadRequest request;
  // The lengths of a request and the tokens of its prompt are drawn from different streams.
  Random random = MakeRandom(options_.seed, SplitMix(stream) >> 2);
  if (trace_.empty()) {
    const std::int64_t length = SampleLength(options_.input, random);
    request.output_tokens = SampleLength(options_.output, random);
    if (options_.prefix_tokens > 0 && Fraction(random) < options_.prefix_share) {
      const auto prefix =
          std::uniform_int_distribution<std::int64_t>(0, options_.prefix_count - 1)(random);
      AppendTokens(kPrefixStream + static_cast<std::uint64_t>(prefix),
                   std::min(options_.prefix_tokens, length - 1), &request.prompt);
    }
    AppendTokens(kRequestStream + stream, length - static_cast<std::int64_t>(request.prompt.size()),
                 &request.prompt);
  } else {
    request = FromTrace(number);
  }
  if (request.output_tokens > 1 && Fraction(random) < options_.cancel_ratio) {
    request.cancel_after =
        std::uniform_int_distribution<std::int64_t>(1, request.output_tokens - 1)(random);
  }
  if (!options_.schema.empty() && Fraction(random) < options_.schema_share) {
    request.schema = options_.schema;
  }
  return request;
}

std::vector<double> Workload::SendTimes(std::int64_t count) const {
  std::vector<double> times;
  if (!trace_.empty()) {
    for (std::int64_t i = 0; i < count; ++i) {
      times.push_back(trace_[static_cast<std::size_t>(i)].seconds);
    }
    return times;
  }
  Random random = MakeRandom(options_.seed, kArrivalStream);
  std::exponential_distribution<double> exponential(options_.rate);
  std::gamma_distribution<double> gamma(options_.burstiness,
                                        1 / (options_.rate * options_.burstiness));
  double now = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    times.push_back(now);
    now += options_.arrival == Arrival::kPoisson ? exponential(random)
           : options_.arrival == Arrival::kGamma ? gamma(random)
                                                 : 1 / options_.rate;
  }
  return times;
}

}  // namespace quire::client
