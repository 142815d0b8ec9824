#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "kernels/sampling/sampling_passes.h"
#include "kernels/sampling/sigma.h"

namespace quire::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// A token whose x is this far below the best candidate has mass 0 in top-p and cannot win the race
// of step 10. Its exp(x - max x) is at most 7e-13 and its e at least 2^-33, so its score is above
// 100. The score of the best candidate is at most 23.
constexpr float kReach = 28.0f;

// Number of remaining tokens up to which the cutoff is searched token by token.
constexpr std::size_t kFewTokens = 256;
// Maximum number of rounds that narrow the range of values around the cutoff, each to a quarter.
constexpr int kMaxRounds = 8;

// A set of tokens in ascending order of ids. The arrays are in a workspace.
struct Candidates {
  std::int32_t* ids;
  float* x;
  float* w;             // exp(x - max x)
  std::uint64_t* keys;  // scratch
  std::size_t count;
};

// Maps x to an integer that increases with x. 0 and -0 have the same key.
std::uint32_t OrderedKey(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float ValueOfKey(std::uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Returns floor(w * 2^40). A sum of such integers does not depend on their order.
std::uint64_t Mass(float w) {
  return static_cast<std::uint64_t>(w * 0x1p40f);
}

// Returns a key for the order (x descending, id ascending): larger keys come first.
std::uint64_t OrderKey(float x, std::int32_t id) {
  return std::uint64_t{OrderedKey(x)} << 32 | ~static_cast<std::uint32_t>(id);
}

// Keeps the first k tokens in the order of OrderKey. REQUIRES: 0 < k <= count.
internal::Prefix KeepFirst(Candidates& c, std::size_t k) {
  for (std::size_t i = 0; i < c.count; ++i) c.keys[i] = OrderKey(c.x[i], c.ids[i]);
  std::nth_element(c.keys, c.keys + (k - 1), c.keys + c.count, std::greater<>());
  const std::uint64_t last = c.keys[k - 1];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < c.count; ++i) {
    if (OrderKey(c.x[i], c.ids[i]) < last) continue;
    c.ids[kept] = c.ids[i];
    c.x[kept] = c.x[i];
    ++kept;
  }
  c.count = kept;
  return {ValueOfKey(static_cast<std::uint32_t>(last >> 32)),
          static_cast<std::int32_t>(~static_cast<std::uint32_t>(last))};
}

// Does step 7 (top-k). `reach` is the prefix of tokens before this step. Compares tokens with the
// k-th best value so far, which rejects nearly all of them while the row is read.
internal::Prefix FirstTokens(const float* x, std::size_t vocab, std::size_t k,
                             internal::Prefix reach, Candidates& c) {
  constexpr std::size_t kChunk = 512;
  internal::Prefix prefix = reach;
  c.count = 0;
  for (std::size_t at = 0; at < vocab; at += kChunk) {
    const std::size_t size = std::min(vocab - at, kChunk);
    c.count += internal::CollectBetween({nullptr, static_cast<std::int32_t>(at), x + at, size},
                                        {prefix.x}, c.ids + c.count, c.x + c.count);
    if (c.count >= 4 * k + kChunk) prefix = KeepFirst(c, k);
  }
  return c.count >= k ? KeepFirst(c, k) : reach;
}

// Finds the token at which the mass of the first candidates reaches a target. Searches by radix
// digits of OrderedKey, so that results do not depend on the order of additions. `above` is the
// mass of the tokens before all candidates. REQUIRES: `above` plus the mass of all candidates
// reaches the target.
internal::Prefix FindCutoff(const Candidates& c, double target, std::uint64_t above) {
  constexpr int kBits = 11;
  const auto reached = [target](std::uint64_t mass) { return static_cast<double>(mass) >= target; };
  std::array<std::uint64_t, 1 << kBits> sums;
  std::uint32_t prefix = 0;
  std::uint32_t mask = 0;
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
  internal::Prefix cutoff{ValueOfKey(prefix), -1};
  for (std::size_t i = 0; i < c.count; ++i) {
    if (OrderedKey(c.x[i]) != prefix) continue;
    cutoff.last_tie = c.ids[i];
    above += Mass(c.w[i]);
    if (reached(above)) break;
  }
  return cutoff;
}

// Does step 8 over the values of `from` that are at least values.low. values.high is the largest
// value. `c` receives the tokens around the cutoff and may alias `from`. The sets {x >= cut} are
// nested and masses do not depend on order. The range of values around the cutoff is therefore
// narrowed first, and FindCutoff reads only the tokens in this range.
internal::Prefix FindTopPCutoff(float top_p, internal::ValueRange values,
                                const internal::IdsAndValues& from, Candidates& c) {
  const float max = values.high;
  internal::MassCuts cuts = {max - 2.0f, max - 5.0f, max - 10.0f, values.low};
  for (float& cut : cuts) cut = std::max(cut, values.low);
  internal::Masses masses = internal::MassesAtLeast(from.values, from.count, max, cuts);
  const double target = static_cast<double>(top_p) * static_cast<double>(masses.back());
  std::uint64_t above = 0;
  internal::ValueRange range{-kLargest};
  // The first set that reaches the target contains the cutoff, and the preceding set does not.
  const auto narrow = [&] {
    std::size_t set = 0;
    while (set + 1 < cuts.size() && static_cast<double>(above + masses[set]) < target) ++set;
    if (set > 0) {
      above += masses[set - 1];
      range.high = cuts[set - 1];
    }
    range.low = cuts[set];
  };
  narrow();
  c.count = internal::CollectBetween(from, range, c.ids, c.x);
  for (int round = 0; round < kMaxRounds && c.count > kFewTokens; ++round) {
    const float width = std::min(range.high, max) - range.low;
    cuts = {range.low + 0.75f * width, range.low + 0.5f * width, range.low + 0.25f * width,
            range.low};
    masses = internal::MassesAtLeast(c.x, c.count, max, cuts);
    narrow();
    c.count = internal::CollectBetween({c.ids, 0, c.x, c.count}, range, c.ids, c.x);
  }
  internal::ExpMinus(c.x, c.count, max, c.w);
  return FindCutoff(c, target, above);
}

bool HasFilter(const SamplingRow& row) {
  return row.top_n_sigma > 0.0f || row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0.0f;
}

// Does steps 7 to 9, except XTC.
internal::Prefix Filter(const SamplingRow& row, const float* x, std::size_t vocab, float max,
                        Candidates& c) {
  internal::Prefix prefix{std::max(max - kReach, -kLargest)};
  if (row.top_n_sigma > 0.0f) {
    const internal::Moments moments = internal::MomentsOf(x, vocab);
    prefix.x = std::max(prefix.x, internal::SigmaCutoff(moments, max, row.top_n_sigma));
  }
  const float low = prefix.x;
  internal::IdsAndValues survivors{nullptr, 0, x, vocab};
  const auto k = static_cast<std::size_t>(row.top_k);
  if (k > 0 && k < vocab) {
    prefix = FirstTokens(x, vocab, k, prefix, c);
    survivors = {c.ids, 0, c.x, c.count};
  }
  if (row.top_p < 1.0f) prefix = FindTopPCutoff(row.top_p, {low, max}, survivors, c);
  if (row.min_p > 0.0f) {
    const float threshold = max + std::log(row.min_p);
    if (threshold > prefix.x) prefix = {threshold};
  }
  return prefix;
}

// Returns the total mass of the tokens of the prefix.
std::uint64_t MassOf(const internal::Prefix& prefix, const float* x, std::size_t vocab, float max) {
  internal::MassCuts cuts;
  cuts.fill(prefix.x);
  std::uint64_t mass = internal::MassesAtLeast(x, vocab, max, cuts).front();
  float w = 0;
  internal::ExpMinus(&prefix.x, 1, max, &w);
  const auto after = static_cast<std::size_t>(prefix.last_tie) + 1;
  for (std::size_t id = after; id < vocab; ++id) mass -= x[id] == prefix.x ? Mass(w) : 0;
  return mass;
}

struct DrawnToken {
  std::int32_t token = -1;
  float processed_logprob = 0;
};

// Does XTC of step 9. `c` receives the tokens of the prefix that remain. Returns the largest x of
// these tokens.
float ExcludeTop(const SamplingRow& row, const internal::Prefix& prefix,
                 const internal::IdsAndValues& from, float max, Candidates& c) {
  c.count = internal::CollectBetween(from, {prefix.x}, c.ids, c.x);
  internal::ExpMinus(c.x, c.count, max, c.w);
  const auto keep_if = [&c](auto is_in) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < c.count; ++i) {
      if (!is_in(i)) continue;
      c.ids[kept] = c.ids[i];
      c.x[kept] = c.x[i];
      c.w[kept++] = c.w[i];
    }
    c.count = kept;
  };
  std::uint64_t total = 0;
  keep_if([&](std::size_t i) {
    const bool is_in = c.x[i] > prefix.x || c.ids[i] <= prefix.last_tie;
    total += is_in ? Mass(c.w[i]) : 0;
    return is_in && Mass(c.w[i]) > 0;
  });
  const double target = static_cast<double>(row.xtc_threshold) * static_cast<double>(total);
  std::uint64_t first_kept = ~std::uint64_t{0};
  for (std::size_t i = 0; i < c.count; ++i) {
    if (static_cast<double>(Mass(c.w[i])) < target) continue;
    first_kept = std::min(first_kept, OrderKey(c.x[i], c.ids[i]));
  }
  if (first_kept == ~std::uint64_t{0}) return max;
  keep_if([&](std::size_t i) { return OrderKey(c.x[i], c.ids[i]) <= first_kept; });
  return ValueOfKey(static_cast<std::uint32_t>(first_kept >> 32));
}

// Does step 10 after XTC.
DrawnToken SampleBelowTop(const SamplingRow& row, float max, const internal::RaceKey& key,
                          Candidates& c) {
  const internal::IdsAndValues left{c.ids, 0, c.x, c.count};
  DrawnToken drawn{internal::RaceAmong(left, max, {-kLargest}, key)};
  if (row.wants_processed_logprob) {
    internal::MassCuts all;
    all.fill(-kLargest);
    const float x = c.x[std::lower_bound(c.ids, c.ids + c.count, drawn.token) - c.ids];
    drawn.processed_logprob =
        internal::ProcessedLogprob(x, max, internal::MassesAtLeast(c.x, c.count, max, all).front());
  }
  return drawn;
}

// Does steps 7 to 10.
DrawnToken Sample(const SamplingRow& row, const float* x, std::size_t vocab, float max,
                  Candidates& c) {
  const internal::RaceKey key{row.seed, row.position, row.choice};
  const internal::Prefix prefix = Filter(row, x, vocab, max, c);
  if (internal::HasXtc(row)) {
    return SampleBelowTop(row, ExcludeTop(row, prefix, {nullptr, 0, x, vocab}, max, c), key, c);
  }
  const auto race = [&] {
    // Without a filter, nearly all tokens take part in the race.
    if (HasFilter(row)) {
      c.count = internal::CollectBetween({nullptr, 0, x, vocab}, {prefix.x}, c.ids, c.x);
      if (c.count < vocab / 4) {
        return internal::RaceAmong({c.ids, 0, c.x, c.count}, max, prefix, key);
      }
    }
    return internal::Race(x, vocab, max, prefix, key);
  };
  DrawnToken drawn{race()};
  if (row.wants_processed_logprob) {
    drawn.processed_logprob =
        internal::ProcessedLogprob(x[drawn.token], max, MassOf(prefix, x, vocab, max));
  }
  return drawn;
}

bool HasText(std::uint32_t token, std::uint32_t text_vocab, const std::uint8_t* has_text) {
  return token < text_vocab && (has_text == nullptr || has_text[token] != 0);
}

// Calls `act` for each id below `count` that has no text. Such ids are few, so memchr searches for
// them.
template <typename Act>
void ForEachWithoutText(const std::uint8_t* has_text, std::size_t count, Act act) {
  if (has_text == nullptr) return;
  for (const std::uint8_t* at = has_text; at < has_text + count; ++at) {
    const auto left = static_cast<std::size_t>(has_text + count - at);
    at = static_cast<const std::uint8_t*>(std::memchr(at, 0, left));
    if (at == nullptr) return;
    act(static_cast<std::size_t>(at - has_text));
  }
}

bool HasPenalties(const SamplingRow& row) {
  const bool has_history = row.history_size > 0 || row.sample_in_flight != nullptr;
  return has_history && (row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f ||
                         row.presence_penalty != 0.0f);
}

// Does steps 2 and 3 for one token.
void Penalize(const SamplingRow& row, const TokenCount& seen, float* z) {
  float& value = z[seen.token];
  value = value > 0.0f ? value / row.repetition_penalty : value * row.repetition_penalty;
  if (seen.output_count > 0) {
    const float frequency = row.frequency_penalty * static_cast<float>(seen.output_count);
    value = value - frequency;
    value = value - row.presence_penalty;
  }
  value = std::min(value, kLargest);
}

// Does steps 2 and 3 for the whole history.
void PenalizeHistory(const SamplingRow& row, std::uint32_t vocab, float* z) {
  const std::int32_t in_flight = internal::SampleInFlight(row, vocab);
  bool is_new = in_flight >= 0;
  for (std::uint32_t i = 0; i < row.history_size; ++i) {
    TokenCount seen = row.history[i];
    if (seen.token == in_flight) {
      ++seen.output_count;
      is_new = false;
    }
    Penalize(row, seen, z);
  }
  if (is_new) Penalize(row, {.token = in_flight, .output_count = 1}, z);
}

// Processes 32 ids per word, because most words are all ones or all zeros.
void ApplyMask(const std::uint32_t* allowed, std::uint32_t vocab, float* z) {
  for (std::uint32_t begin = 0; begin < vocab; begin += 32) {
    const std::uint32_t size = std::min(32u, vocab - begin);
    std::uint32_t masked = ~allowed[begin / 32];
    if (masked == ~0u) {
      std::fill_n(z + begin, size, kMinusInfinity);
      continue;
    }
    if (size < 32) masked &= (1u << size) - 1;
    for (; masked != 0; masked &= masked - 1) z[begin + std::countr_zero(masked)] = kMinusInfinity;
  }
}

// Does steps 2 to 5 in place.
void Adjust(const SamplingRow& row, std::uint32_t vocab, float* z) {
  if (HasPenalties(row)) PenalizeHistory(row, vocab, z);
  for (std::uint32_t i = 0; i < row.bias_size; ++i) {
    float& value = z[row.bias[i].token];
    value = std::min(value + row.bias[i].bias, kLargest);
  }
  for (std::uint32_t i = 0; i < row.banned_size; ++i) z[row.banned[i]] = kMinusInfinity;
  if (row.allowed != nullptr) ApplyMask(row.allowed, vocab, z);
  if (row.text_vocab < vocab) std::fill(z + row.text_vocab, z + vocab, kMinusInfinity);
  ForEachWithoutText(row.has_text, std::min(row.text_vocab, vocab),
                     [z](std::size_t token) { z[token] = kMinusInfinity; });
}

// Inserts `entry` into the list of at most n best entries, which is sorted by logit. Among equal
// logits the lower id stays first.
void InsertTop(TopLogprob entry, std::uint32_t n, TopLogprob* top, std::uint32_t* count) {
  if (*count == n && !(entry.logprob > top[n - 1].logprob)) return;
  std::uint32_t at = *count < n ? (*count)++ : n - 1;
  for (; at > 0 && top[at - 1].logprob < entry.logprob; --at) top[at] = top[at - 1];
  top[at] = entry;
}

// Computes raw log-probabilities of one row (step 1).
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
    const std::size_t count = std::min(vocab_, text_vocab_);
    const std::size_t id = std::min(static_cast<std::size_t>(token), count);
    std::size_t better = internal::CountBefore(logits_, count, z, id);
    ForEachWithoutText(has_text_, count, [&](std::size_t i) {
      if (logits_[i] > z || (logits_[i] == z && i < id)) --better;
    });
    return static_cast<std::int32_t>(better) + 1;
  }

  // Writes the n best ids with text and a finite logit, best first, and returns their number.
  std::uint32_t Top(std::uint32_t n, TopLogprob* top) const {
    constexpr std::size_t kChunk = 64;
    std::array<std::int32_t, kChunk> ids;
    std::array<float, kChunk> values;
    const std::size_t vocab = std::min(vocab_, text_vocab_);
    std::uint32_t count = 0;
    for (std::size_t at = 0; n > 0 && at < vocab; at += kChunk) {
      const float cut = count == n ? top[n - 1].logprob : -kLargest;
      const std::size_t found = internal::CollectBetween(
          {nullptr, static_cast<std::int32_t>(at), logits_ + at, std::min(kChunk, vocab - at)},
          {cut}, ids.data(), values.data());
      for (std::size_t i = 0; i < found; ++i) {
        if (!HasText(static_cast<std::uint32_t>(ids[i]), text_vocab_, has_text_)) continue;
        InsertTop({ids[i], values[i]}, n, top, &count);
      }
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

// Returns the token with the best logit if only masks apply and they allow this token, otherwise
// -1. Does not copy the row.
std::int32_t BestUnmasked(const SamplingRow& row, std::uint32_t vocab, float max) {
  if (HasPenalties(row) || row.bias_size > 0) return -1;
  const auto best = static_cast<std::int32_t>(internal::FindFirst(row.logits, vocab, max));
  const bool banned =
      std::find(row.banned, row.banned + row.banned_size, best) != row.banned + row.banned_size;
  const auto id = static_cast<std::uint32_t>(best);
  const bool is_allowed = row.allowed == nullptr || (row.allowed[id / 32] >> (id % 32) & 1) != 0;
  if (banned || !is_allowed || !HasText(id, row.text_vocab, row.has_text)) return -1;
  return best;
}

// Does steps 2 to 10. Returns token -1 if no token survives. `x` [vocab] and `c` have room for all
// tokens; `max` is the best logit.
DrawnToken Choose(const SamplingRow& row, std::uint32_t vocab, float max, float* x, Candidates& c) {
  const bool greedy = row.temperature < 0.001f;
  if (greedy) {
    const std::int32_t best = BestUnmasked(row, vocab, max);
    if (best >= 0) return {best};
  }
  std::copy(row.logits, row.logits + vocab, x);
  Adjust(row, vocab, x);
  if (greedy) {
    const float best = internal::ScanLogits(x, vocab).max;
    if (best == kMinusInfinity) return {};
    return {static_cast<std::int32_t>(internal::FindFirst(x, vocab, best))};
  }
  const float best = internal::ScaleLogits(x, vocab, 1.0f / row.temperature);
  if (best == kMinusInfinity) return {};
  return Sample(row, x, vocab, best, c);
}

void SampleRow(const SamplingRow& row, std::uint32_t vocab, Workspace& workspace,
               SampledRow& sampled) {
  sampled = {.top = sampled.top};
  const internal::LogitScan scan = internal::ScanLogits(row.logits, vocab);
  if (scan.non_finite || scan.max == kMinusInfinity) {
    sampled.non_finite = true;
    return;
  }
  const std::size_t n = vocab;
  auto* const keys = reinterpret_cast<std::uint64_t*>(
      workspace.Reserve(static_cast<std::size_t>(SampleThreadBytes(vocab))));
  auto* const x = reinterpret_cast<float*>(keys + n);
  Candidates c{reinterpret_cast<std::int32_t*>(x + 3 * n), x + n, x + 2 * n, keys, 0};
  const DrawnToken drawn = Choose(row, vocab, scan.max, x, c);
  sampled.token = drawn.token;
  sampled.processed_logprob = drawn.processed_logprob;
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

absl::Status CheckRoom(std::int32_t num_logprobs, const TopLogprob* top) {
  if (num_logprobs <= 0 || top != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("num_logprobs is ", num_logprobs, ", but top is null"));
}

}  // namespace

namespace internal {

bool HasXtc(const SamplingRow& row) {
  if (row.xtc_probability <= 0.0f || row.xtc_threshold > 0.5f) return false;
  constexpr std::uint32_t kPurposeXtc = 1;
  const std::uint32_t r = Philox4x32({0, row.position, row.choice, kPurposeXtc}, row.seed)[0];
  return (static_cast<double>(r) + 0.5) * 0x1p-32 < static_cast<double>(row.xtc_probability);
}

absl::Status CheckSamplingRow(const SamplingRow& row, std::uint32_t vocab) {
  QUIRE_RETURN_IF_ERROR(CheckRange("temperature", row.temperature,
                                   row.temperature >= 0 && row.temperature <= 100, "0 to 100"));
  QUIRE_RETURN_IF_ERROR(
      CheckRange("top_p", row.top_p, row.top_p > 0 && row.top_p <= 1, "above 0, at most 1"));
  QUIRE_RETURN_IF_ERROR(CheckRange("min_p", row.min_p, row.min_p >= 0 && row.min_p <= 1, "0 to 1"));
  QUIRE_RETURN_IF_ERROR(CheckRange("top_n_sigma", row.top_n_sigma,
                                   row.top_n_sigma >= 0 && row.top_n_sigma <= kLargest,
                                   "0 or more and finite"));
  QUIRE_RETURN_IF_ERROR(CheckRange("xtc_probability", row.xtc_probability,
                                   row.xtc_probability >= 0 && row.xtc_probability <= 1, "0 to 1"));
  QUIRE_RETURN_IF_ERROR(CheckRange("xtc_threshold", row.xtc_threshold,
                                   row.xtc_threshold >= 0 && row.xtc_threshold <= 1, "0 to 1"));
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

float ProcessedLogprob(float x, float max, std::uint64_t mass) {
  const double log_mass = std::log(static_cast<double>(mass) * 0x1p-40);
  return static_cast<float>(static_cast<double>(x) - static_cast<double>(max) - log_mass);
}

absl::Status CheckTokenLogprob(const TokenLogprob& token, std::uint32_t vocab) {
  QUIRE_RETURN_IF_ERROR(CheckToken("prompt", token.token, vocab));
  if (token.num_logprobs >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("num_logprobs is ", token.num_logprobs, ", it must be 0 or more"));
}

}  // namespace internal

std::int64_t SampleThreadBytes(std::uint32_t vocab) {
  // 8 bytes for a key, and 4 each for a copy of the logit, the id, x and w.
  return std::int64_t{vocab} * (8 + 4 * 4);
}

absl::Status Sample(const Backend& backend, const SampleParams& params) {
  if (params.rows.size() != params.sampled.size() || params.vocab == 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampler has ", params.rows.size(), " rows, ",
                                                   params.sampled.size(),
                                                   " results and a vocabulary of ", params.vocab,
                                                   "; it must have as many results as rows and "
                                                   "a vocabulary of at least 1"));
  }
  for (std::size_t i = 0; i < params.rows.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(internal::CheckSamplingRow(params.rows[i], params.vocab));
    QUIRE_RETURN_IF_ERROR(CheckRoom(params.rows[i].num_logprobs, params.sampled[i].top));
  }
  backend.ReserveWorkspaces(static_cast<std::size_t>(SampleThreadBytes(params.vocab)));
  backend.ParallelItems(static_cast<std::int64_t>(params.rows.size()),
                        static_cast<double>(params.vocab) * 3, [&](std::int64_t i, int part) {
                          const auto row = static_cast<std::size_t>(i);
                          SampleRow(params.rows[row], params.vocab, backend.workspace(part),
                                    params.sampled[row]);
                        });
  return absl::OkStatus();
}

absl::Status ComputeLogprobs(const Backend& backend, const LogprobParams& params) {
  for (const TokenLogprob& token : params.tokens) {
    QUIRE_RETURN_IF_ERROR(internal::CheckTokenLogprob(token, params.vocab));
    QUIRE_RETURN_IF_ERROR(CheckRoom(token.num_logprobs, token.top));
  }
  backend.ParallelItems(
      static_cast<std::int64_t>(params.tokens.size()), static_cast<double>(params.vocab) * 3,
      [&](std::int64_t i, int) {
        TokenLogprob& token = params.tokens[static_cast<std::size_t>(i)];
        token.logprob = 0.0f;
        token.rank = 0;
        token.num_top = 0;
        const internal::LogitScan scan = internal::ScanLogits(token.logits, params.vocab);
        token.non_finite = scan.non_finite || scan.max == kMinusInfinity;
        if (token.non_finite) return;
        const RawRow raw(token.logits, params.vocab, scan.max, params.text_vocab, params.has_text);
        token.logprob = raw.LogProb(token.logits[token.token]);
        token.rank = raw.Rank(token.token);
        token.num_top = raw.Top(static_cast<std::uint32_t>(token.num_logprobs), token.top);
      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
