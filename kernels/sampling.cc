#include "kernels/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "kernels/cpu/sampling_passes.h"
#include "kernels/exact_math.h"

namespace quire::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Below the best candidate by this much a token has mass 0 in top-p and cannot win the draw: its
// weight is at most 7e-13, the smallest e is 2^-33, and the best candidate's e is at most 23.
constexpr float kReach = 28.0f;

// Purpose word of the Philox counter.
constexpr std::uint32_t kPurposeDraw = 0;

// Candidates in order of ascending id; arrays lie in a workspace.
struct Candidates {
  std::int32_t* ids;
  float* x;
  float* w;             // exp(x - max x)
  std::uint64_t* keys;  // scratch
  std::size_t count;
};

// u32 that grows with x, and is equal for 0 and -0.
std::uint32_t OrderedKey(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// floor(w * 2^40): sums of these have no order.
std::uint64_t Mass(float w) {
  return static_cast<std::uint64_t>(w * 0x1p40f);
}

// Rank in order of (x descending, id ascending), as one number; larger comes first.
std::uint64_t OrderKey(float x, std::int32_t id) {
  return std::uint64_t{OrderedKey(x)} << 32 | ~static_cast<std::uint32_t>(id);
}

template <typename Keep>
void KeepIf(Candidates& c, Keep keep) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < c.count; ++i) {
    if (!keep(i)) continue;
    c.ids[kept] = c.ids[i];
    c.x[kept] = c.x[i];
    c.w[kept] = c.w[i];
    ++kept;
  }
  c.count = kept;
}

// Keeps the k first in order; returns the x of the last of them. REQUIRES: 0 < k <= count.
float KeepFirst(Candidates& c, std::size_t k) {
  for (std::size_t i = 0; i < c.count; ++i) c.keys[i] = OrderKey(c.x[i], c.ids[i]);
  std::nth_element(c.keys, c.keys + (k - 1), c.keys + c.count, std::greater<>());
  const std::uint64_t last = c.keys[k - 1];
  float x = 0;
  for (std::size_t i = 0; i < c.count; ++i) {
    if (OrderKey(c.x[i], c.ids[i]) == last) x = c.x[i];
  }
  KeepIf(c, [&](std::size_t i) { return OrderKey(c.x[i], c.ids[i]) >= last; });
  return x;
}

// Step 7, and the candidates within reach of the best one. A running k-th best drops nearly
// everything while the row is read.
void Collect(const float* x, std::size_t vocab, float max, std::size_t k, Candidates& c) {
  constexpr std::size_t kChunk = 128;
  float cut = std::max(max - kReach, -kLargest);
  c.count = 0;
  for (std::size_t at = 0; at < vocab; at += kChunk) {
    c.count += internal::CollectAtLeast(x, {at, std::min(vocab, at + kChunk)}, cut, c.ids + c.count,
                                        c.x + c.count);
    if (k > 0 && c.count >= 4 * k + kChunk) cut = KeepFirst(c, k);
  }
  if (k > 0 && c.count > k) KeepFirst(c, k);
}

// The shortest prefix whose mass reaches a target.
struct Border {
  std::uint32_t key;   // everything above is in
  std::uint64_t ties;  // of those that are equal, this many with the lowest ids
};

// By radix digits of the ordered key, so that equal sums come from any order of addition. REQUIRES:
// the mass of all candidates reaches the target.
Border FindBorder(const Candidates& c, double target) {
  constexpr int kBits = 11;
  const auto reached = [target](std::uint64_t mass) { return static_cast<double>(mass) >= target; };
  std::array<std::uint64_t, 1 << kBits> sums;
  std::uint32_t prefix = 0;
  std::uint32_t mask = 0;
  std::uint64_t above = 0;
  for (const int shift : {21, 10, 0}) {
    const std::uint32_t digit = shift == 0 ? (1u << 10) - 1 : (1u << kBits) - 1;
    sums.fill(0);
    for (std::size_t i = 0; i < c.count; ++i) {
      const std::uint32_t key = OrderedKey(c.x[i]);
      if ((key & mask) == prefix) sums[(key >> shift) & digit] += Mass(c.w[i]);
    }
    std::uint32_t bucket = digit;
    while (bucket > 0 && !reached(above + sums[bucket])) above += sums[bucket--];
    prefix |= bucket << shift;
    mask |= digit << shift;
  }
  for (std::size_t i = 0; i < c.count; ++i) {
    if (OrderedKey(c.x[i]) != prefix) continue;
    std::uint64_t ties = 1;
    while (ties < c.count && !reached(above + ties * Mass(c.w[i]))) ++ties;
    return {prefix, ties};
  }
  return {prefix, 0};
}

// Step 8.
void KeepTopP(float top_p, float max, Candidates& c) {
  // Masses of nested sets of the best candidates: the prefix lies within the first that reaches the
  // target.
  constexpr std::array<float, 4> kDepths = {4.0f, 8.0f, 16.0f, kReach};
  std::array<std::uint64_t, 4> masses{};
  for (std::size_t i = 0; i < c.count; ++i) {
    const float depth = max - c.x[i];
    masses[depth <= kDepths[0]   ? 0
           : depth <= kDepths[1] ? 1
           : depth <= kDepths[2] ? 2
                                 : 3] += Mass(c.w[i]);
  }
  const double target = static_cast<double>(top_p) *
                        static_cast<double>(masses[0] + masses[1] + masses[2] + masses[3]);
  std::size_t set = 0;
  for (std::uint64_t mass = masses[0]; set < 3 && static_cast<double>(mass) < target;) {
    mass += masses[++set];
  }
  if (set < 3) KeepIf(c, [&](std::size_t i) { return max - c.x[i] <= kDepths[set]; });
  Border border = FindBorder(c, target);
  KeepIf(c, [&](std::size_t i) {
    const std::uint32_t key = OrderedKey(c.x[i]);
    if (key != border.key) return key > border.key;
    if (border.ties == 0) return false;
    --border.ties;
    return true;
  });
}

// Steps 7 to 9.
void Filter(const SamplingRow& row, const float* x, std::size_t vocab, float max, Candidates& c) {
  const auto k = static_cast<std::size_t>(row.top_k);
  Collect(x, vocab, max, k < vocab ? k : 0, c);
  internal::ExpMinus(c.x, c.count, max, c.w);
  if (row.top_p < 1.0f) KeepTopP(row.top_p, max, c);
  if (row.min_p > 0.0f) {
    const float threshold = max + std::log(row.min_p);
    KeepIf(c, [&](std::size_t i) { return c.x[i] >= threshold; });
  }
}

// Step 10.
std::int32_t Draw(const SamplingRow& row, const Candidates& c) {
  float best = std::numeric_limits<float>::infinity();
  std::int32_t token = c.ids[0];
  std::uint32_t block = 0xffffffffu;
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < c.count; ++i) {
    const auto id = static_cast<std::uint32_t>(c.ids[i]);
    if (id / 4 != block) {
      block = id / 4;
      words = Philox4x32({block, row.position, row.choice, kPurposeDraw}, row.seed);
    }
    const std::uint32_t r = words[id % 4];
    // 1 - u, exact; -ln u is never below it, so most tokens lose without a logarithm.
    const double rest = (4294967295.5 - static_cast<double>(r)) * 0x1p-32;
    if (static_cast<float>(rest) * 0.999f > best * c.w[i]) continue;
    const float score = ExponentialVariate(r) / c.w[i];
    if (score < best) {
      best = score;
      token = c.ids[i];
    }
  }
  return token;
}

bool HasText(std::uint32_t token, std::uint32_t text_vocab, const std::uint8_t* has_text) {
  return token < text_vocab && (has_text == nullptr || has_text[token] != 0);
}

// Steps 2 to 5, in place.
void Adjust(const SamplingRow& row, std::uint32_t vocab, float* z) {
  const bool penalties = row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f ||
                         row.presence_penalty != 0.0f;
  for (std::uint32_t i = 0; penalties && i < row.history_size; ++i) {
    const TokenCount& seen = row.history[i];
    float& value = z[seen.token];
    value = value > 0.0f ? value / row.repetition_penalty : value * row.repetition_penalty;
    if (seen.output_count > 0) {
      const float frequency = row.frequency_penalty * static_cast<float>(seen.output_count);
      value = value - frequency;
      value = value - row.presence_penalty;
    }
    value = std::min(value, kLargest);
  }
  for (std::uint32_t i = 0; i < row.bias_size; ++i) {
    float& value = z[row.bias[i].token];
    value = std::min(value + row.bias[i].bias, kLargest);
  }
  for (std::uint32_t i = 0; i < row.banned_size; ++i) z[row.banned[i]] = kNothing;
  if (row.text_vocab < vocab) std::fill(z + row.text_vocab, z + vocab, kNothing);
  if (row.has_text == nullptr) return;
  for (std::uint32_t i = 0; i < vocab; ++i) {
    if (row.has_text[i] == 0) z[i] = kNothing;
  }
}

// Raw log-probabilities of one row: step 1.
class RawRow {
 public:
  RawRow(const float* logits, std::uint32_t vocab, float max, std::uint32_t text_vocab,
         const std::uint8_t* has_text)
      : logits_(logits),
        vocab_(vocab),
        text_vocab_(text_vocab),
        has_text_(has_text),
        max_(max),
        log_sum_(std::log(internal::SumOfExp(logits, vocab, max))) {}

  float LogProb(float logit) const {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_) - log_sum_);
  }

  std::int32_t Rank(std::int32_t token) const {
    const float z = logits_[token];
    std::int32_t rank = 1;
    for (std::uint32_t i = 0; i < std::min(vocab_, text_vocab_); ++i) {
      const bool better =
          logits_[i] > z || (logits_[i] == z && i < static_cast<std::uint32_t>(token));
      if (better && HasText(i, text_vocab_, has_text_)) ++rank;
    }
    return rank;
  }

  // The n best ids with text and a finite logit, best first; returns how many there are.
  std::uint32_t Top(std::uint32_t n, TopLogprob* top) const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; n > 0 && i < std::min(vocab_, text_vocab_); ++i) {
      const float z = logits_[i];
      if (z == kNothing || (count == n && !(z > top[n - 1].logprob))) continue;
      if (!HasText(i, text_vocab_, has_text_)) continue;
      // Insertion by logit; equal ones stay behind the lower ids before them.
      std::uint32_t at = count < n ? count++ : n - 1;
      for (; at > 0 && top[at - 1].logprob < z; --at) top[at] = top[at - 1];
      top[at] = {static_cast<std::int32_t>(i), z};
    }
    for (std::uint32_t i = 0; i < count; ++i) top[i].logprob = LogProb(top[i].logprob);
    return count;
  }

 private:
  const float* const logits_;
  const std::uint32_t vocab_;
  const std::uint32_t text_vocab_;
  const std::uint8_t* const has_text_;
  const float max_;
  const double log_sum_;
};

// Steps 2 to 10; -1 when nothing survives. `x` [vocab] is a copy of the logits, `c` has room for
// them.
std::int32_t Choose(const SamplingRow& row, std::uint32_t vocab, float* x, Candidates& c) {
  Adjust(row, vocab, x);
  if (row.temperature < 0.001f) {
    const float max = internal::ScanLogits(x, vocab).max;
    return max == kNothing ? -1 : static_cast<std::int32_t>(std::find(x, x + vocab, max) - x);
  }
  const float max = internal::ScaleLogits(x, vocab, 1.0f / row.temperature);
  if (max == kNothing) return -1;
  Filter(row, x, vocab, max, c);
  return Draw(row, c);
}

// Keys, a copy of the logits, and ids, x and w of the candidates, which are at most all tokens.
std::size_t SampleScratchBytes(std::uint32_t vocab) {
  return std::size_t{vocab} * (8 + 4 * 4);
}

void SampleRow(const SamplingRow& row, std::uint32_t vocab, Workspace& workspace,
               SampledRow& sampled) {
  sampled = {-1, 0.0f, 0, false, false, 0, sampled.top};
  const internal::LogitScan scan = internal::ScanLogits(row.logits, vocab);
  if (scan.non_finite || scan.max == kNothing) {
    sampled.non_finite = true;
    return;
  }
  const std::size_t n = vocab;
  auto* const keys = reinterpret_cast<std::uint64_t*>(workspace.Reserve(SampleScratchBytes(vocab)));
  auto* const x = reinterpret_cast<float*>(keys + n);
  std::copy(row.logits, row.logits + vocab, x);
  Candidates c{reinterpret_cast<std::int32_t*>(x + 3 * n), x + n, x + 2 * n, keys, 0};
  sampled.token = Choose(row, vocab, x, c);
  if (sampled.token < 0) {
    sampled.no_survivor = true;
    return;
  }
  if (row.num_logprobs < 0) return;
  const RawRow raw(row.logits, vocab, scan.max, row.text_vocab, row.has_text);
  sampled.logprob = raw.LogProb(row.logits[sampled.token]);
  sampled.rank = raw.Rank(sampled.token);
  sampled.num_top = raw.Top(static_cast<std::uint32_t>(row.num_logprobs), sampled.top);
}

absl::Status CheckToken(absl::string_view what, std::int32_t token, std::uint32_t vocab) {
  if (token >= 0 && static_cast<std::uint32_t>(token) < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " token ", token, " is outside the vocabulary of ", vocab));
}

absl::Status CheckRange(absl::string_view what, float value, bool valid, absl::string_view range) {
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, ", it must be ", range));
}

}  // namespace

namespace internal {

absl::Status CheckSamplingRow(const SamplingRow& row, std::uint32_t vocab) {
  QUIRE_RETURN_IF_ERROR(CheckRange("temperature", row.temperature,
                                   row.temperature >= 0 && row.temperature <= 100, "0 to 100"));
  QUIRE_RETURN_IF_ERROR(
      CheckRange("top_p", row.top_p, row.top_p > 0 && row.top_p <= 1, "above 0, at most 1"));
  QUIRE_RETURN_IF_ERROR(CheckRange("min_p", row.min_p, row.min_p >= 0 && row.min_p <= 1, "0 to 1"));
  QUIRE_RETURN_IF_ERROR(CheckRange("repetition_penalty", row.repetition_penalty,
                                   row.repetition_penalty > 0 && row.repetition_penalty <= kLargest,
                                   "above 0 and finite"));
  QUIRE_RETURN_IF_ERROR(CheckRange("presence_penalty", row.presence_penalty,
                                   std::isfinite(row.presence_penalty), "finite"));
  QUIRE_RETURN_IF_ERROR(CheckRange("frequency_penalty", row.frequency_penalty,
                                   std::isfinite(row.frequency_penalty), "finite"));
  QUIRE_RETURN_IF_ERROR(
      CheckRange("top_k", static_cast<float>(row.top_k), row.top_k >= 0, "0 or more"));
  for (std::uint32_t i = 0; i < row.history_size; ++i) {
    QUIRE_RETURN_IF_ERROR(CheckToken("history", row.history[i].token, vocab));
  }
  for (std::uint32_t i = 0; i < row.bias_size; ++i) {
    QUIRE_RETURN_IF_ERROR(CheckToken("logit bias", row.bias[i].token, vocab));
    QUIRE_RETURN_IF_ERROR(
        CheckRange("logit bias", row.bias[i].bias, std::isfinite(row.bias[i].bias), "finite"));
  }
  for (std::uint32_t i = 0; i < row.banned_size; ++i) {
    QUIRE_RETURN_IF_ERROR(CheckToken("banned", row.banned[i], vocab));
  }
  return absl::OkStatus();
}

absl::Status CheckScoredToken(const ScoredToken& token, std::uint32_t vocab) {
  QUIRE_RETURN_IF_ERROR(CheckToken("scored", token.token, vocab));
  if (token.num_logprobs >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(token.num_logprobs, " log-probabilities are asked for, it must be 0 or more"));
}

}  // namespace internal

namespace {

absl::Status CheckRoom(std::int32_t num_logprobs, const TopLogprob* top) {
  if (num_logprobs <= 0 || top != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(num_logprobs, " log-probabilities are asked for without room for them"));
}

}  // namespace

absl::Status Sample(const Backend& backend, const SampleParams& params) {
  if (params.rows.size() != params.sampled.size() || params.vocab == 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampler has ", params.rows.size(), " rows, ",
                                                   params.sampled.size(),
                                                   " results and a vocabulary of ", params.vocab));
  }
  for (std::size_t i = 0; i < params.rows.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(internal::CheckSamplingRow(params.rows[i], params.vocab));
    QUIRE_RETURN_IF_ERROR(CheckRoom(params.rows[i].num_logprobs, params.sampled[i].top));
  }
  backend.ReserveWorkspaces(SampleScratchBytes(params.vocab));
  backend.ParallelItems(static_cast<std::int64_t>(params.rows.size()),
                        static_cast<double>(params.vocab) * 3, [&](std::int64_t i, int part) {
                          const auto row = static_cast<std::size_t>(i);
                          SampleRow(params.rows[row], params.vocab, backend.workspace(part),
                                    params.sampled[row]);
                        });
  return absl::OkStatus();
}

absl::Status ScoreTokens(const Backend& backend, const ScoreParams& params) {
  for (const ScoredToken& token : params.tokens) {
    QUIRE_RETURN_IF_ERROR(internal::CheckScoredToken(token, params.vocab));
    QUIRE_RETURN_IF_ERROR(CheckRoom(token.num_logprobs, token.top));
  }
  backend.ParallelItems(
      static_cast<std::int64_t>(params.tokens.size()), static_cast<double>(params.vocab) * 3,
      [&](std::int64_t i, int) {
        ScoredToken& token = params.tokens[static_cast<std::size_t>(i)];
        token.logprob = 0.0f;
        token.rank = 0;
        token.num_top = 0;
        const internal::LogitScan scan = internal::ScanLogits(token.logits, params.vocab);
        token.non_finite = scan.non_finite || scan.max == kNothing;
        if (token.non_finite) return;
        const RawRow raw(token.logits, params.vocab, scan.max, params.text_vocab, params.has_text);
        token.logprob = raw.LogProb(token.logits[token.token]);
        token.rank = raw.Rank(token.token);
        token.num_top = raw.Top(static_cast<std::uint32_t>(token.num_logprobs), token.top);
      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
