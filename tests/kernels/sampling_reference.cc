// Reference sampler: sorts once, runs every step over the whole vocabulary, and computes
// exponentials and logarithms in f64.

#include "tests/kernels/sampling_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.h"

namespace quire::kernels::internal {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<TokenCount> WholeHistory(const SamplingRow& row, std::uint32_t vocab) {
  std::vector<TokenCount> history(row.history, row.history + row.history_size);
  const std::int32_t in_flight = SampleInFlight(row, vocab);
  if (in_flight < 0) return history;
  for (TokenCount& seen : history) {
    if (seen.token != in_flight) continue;
    ++seen.output_count;
    return history;
  }
  history.push_back({.token = in_flight, .output_count = 1});
  return history;
}

// Does steps 2 to 5.
std::vector<float> Adjusted(const SamplingRow& row, std::uint32_t vocab) {
  std::vector<float> z(row.logits, row.logits + vocab);
  for (const TokenCount& seen : WholeHistory(row, vocab)) {
    float& value = z[static_cast<std::size_t>(seen.token)];
    value = value > 0 ? value / row.repetition_penalty : value * row.repetition_penalty;
    const auto count = static_cast<float>(seen.output_count);
    value = value - row.frequency_penalty * count;
    value = value - row.presence_penalty * (count > 0 ? 1.0f : 0.0f);
    value = std::min(value, kLargest);
  }
  for (std::uint32_t i = 0; i < row.bias_size; ++i) {
    float& value = z[static_cast<std::size_t>(row.bias[i].token)];
    value = std::min(value + row.bias[i].bias, kLargest);
  }
  for (std::uint32_t i = 0; i < row.banned_size; ++i) {
    z[static_cast<std::size_t>(row.banned[i])] = kMinusInfinity;
  }
  for (std::uint32_t i = 0; i < vocab && row.allowed != nullptr; ++i) {
    if ((row.allowed[i / 32] >> (i % 32) & 1) == 0) z[i] = kMinusInfinity;
  }
  for (std::uint32_t i = 0; i < vocab; ++i) {
    if (i >= row.text_vocab || (row.has_text != nullptr && row.has_text[i] == 0))
      z[i] = kMinusInfinity;
  }
  return z;
}

std::uint64_t Mass(double w) {
  return static_cast<std::uint64_t>(w * 0x1p40);
}

double RelativeDistance(double value, double cutoff) {
  return std::abs(value - cutoff) / std::max(std::abs(cutoff), 1e-300);
}

// Does top-n-sigma of step 7. The survivors are sorted.
void KeepTopNSigma(float n, const std::vector<float>& x, ReferenceSample& sample) {
  const auto x_of = [&](std::int32_t id) { return double{x[static_cast<std::size_t>(id)]}; };
  const auto count = static_cast<double>(sample.survivors.size());
  double mean = 0;
  for (const std::int32_t id : sample.survivors) mean += x_of(id) / count;
  double variance = 0;
  for (const std::int32_t id : sample.survivors) {
    variance += (x_of(id) - mean) * (x_of(id) - mean) / count;
  }
  const double cutoff = x_of(sample.survivors.front()) - double{n} * std::sqrt(variance);
  for (const std::int32_t id : sample.survivors) {
    // The best token always survives, regardless of the rounding of the cutoff.
    if (id == sample.survivors.front()) continue;
    sample.margin = std::min(sample.margin, RelativeDistance(x_of(id), cutoff));
  }
  std::erase_if(sample.survivors, [&](std::int32_t id) { return x_of(id) < cutoff; });
}

// Does step 8. The survivors are sorted.
void KeepTopP(float top_p, const std::vector<double>& w, ReferenceSample& sample) {
  std::uint64_t total = 0;
  for (const std::int32_t id : sample.survivors) total += Mass(w[static_cast<std::size_t>(id)]);
  const double target = static_cast<double>(top_p) * static_cast<double>(total);
  std::uint64_t mass = 0;
  std::size_t kept = 0;
  while (kept < sample.survivors.size()) {
    mass += Mass(w[static_cast<std::size_t>(sample.survivors[kept++])]);
    const double distance = (static_cast<double>(mass) - target) / static_cast<double>(total);
    sample.margin = std::min(sample.margin, std::abs(distance));
    if (distance >= 0) break;
  }
  sample.survivors.resize(kept);
}

// Does min-p of step 9.
void KeepMinP(float min_p, const std::vector<float>& x, float max, ReferenceSample& sample) {
  const float threshold = max + std::log(min_p);
  std::erase_if(sample.survivors,
                [&](std::int32_t id) { return !(x[static_cast<std::size_t>(id)] >= threshold); });
}

// Does XTC of step 9. The survivors are sorted. Returns the largest remaining x.
float ExcludeTop(float threshold, const std::vector<double>& w, const std::vector<float>& x,
                 ReferenceSample& sample) {
  const auto w_of = [&](std::int32_t id) { return w[static_cast<std::size_t>(id)]; };
  const auto is_weightless = [&](std::int32_t id) {
    sample.margin = std::min(sample.margin, RelativeDistance(w_of(id), 0x1p-40));
    return w_of(id) < 0x1p-40;
  };
  std::erase_if(sample.survivors, is_weightless);
  double total = 0;
  for (const std::int32_t id : sample.survivors) total += w_of(id);
  std::size_t reaching = 0;
  for (const std::int32_t id : sample.survivors) {
    const double probability = w_of(id) / total;
    reaching += probability >= double{threshold} ? 1 : 0;
    if (threshold > 0) {
      sample.margin = std::min(sample.margin, RelativeDistance(probability, double{threshold}));
    }
  }
  if (reaching > 1) {
    sample.survivors.erase(sample.survivors.begin(),
                           sample.survivors.begin() + static_cast<std::ptrdiff_t>(reaching) - 1);
  }
  return x[static_cast<std::size_t>(sample.survivors.front())];
}

// Does step 10.
void Race(const SamplingRow& row, const std::vector<double>& w, ReferenceSample& sample) {
  double best = std::numeric_limits<double>::infinity();
  double second = best;
  for (const std::int32_t id : sample.survivors) {
    const auto token = static_cast<std::uint32_t>(id);
    const auto words = Philox4x32({token / 4, row.position, row.choice, 0}, row.seed);
    const double u = (static_cast<double>(words[token % 4]) + 0.5) * 0x1p-32;
    const double score = -std::log(u) / w[token];
    if (score < best || (score == best && id < sample.token)) {
      second = best;
      best = score;
      sample.token = id;
    } else {
      second = std::min(second, score);
    }
  }
  sample.margin = std::min(sample.margin, (second - best) / second);
  if (second == std::numeric_limits<double>::infinity())
    sample.margin = std::min(sample.margin, 1.0);
}

}  // namespace

ReferenceSample SampleCpu(const SamplingRow& row, std::uint32_t vocab) {
  ReferenceSample sample;
  const float top = *std::max_element(row.logits, row.logits + vocab);
  sample.non_finite =
      top == kMinusInfinity || std::any_of(row.logits, row.logits + vocab,
                                           [](float z) { return std::isnan(z) || z > kLargest; });
  if (sample.non_finite) return sample;
  double sum = 0;
  for (std::uint32_t i = 0; i < vocab; ++i) sum += std::exp(double{row.logits[i]} - double{top});
  for (std::uint32_t i = 0; i < vocab; ++i) {
    sample.logprobs.push_back(double{row.logits[i]} - double{top} - std::log(sum));
  }

  std::vector<float> x = Adjusted(row, vocab);
  const bool greedy = row.temperature < 0.001f;
  for (float& value : x) {
    if (!greedy && value != kMinusInfinity) {
      value = std::clamp(value * (1.0f / row.temperature), -kLargest, kLargest);
    }
  }
  sample.survivors.resize(vocab);
  std::iota(sample.survivors.begin(), sample.survivors.end(), 0);
  std::erase_if(sample.survivors,
                [&](std::int32_t id) { return x[static_cast<std::size_t>(id)] == kMinusInfinity; });
  if (sample.survivors.empty()) {
    sample.no_survivor = true;
    return sample;
  }
  std::stable_sort(sample.survivors.begin(), sample.survivors.end(),
                   [&](std::int32_t a, std::int32_t b) {
                     return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
                   });
  if (greedy) {
    sample.token = sample.survivors[0];
    return sample;
  }
  const float max = x[static_cast<std::size_t>(sample.survivors[0])];
  std::vector<double> w(vocab);
  for (std::uint32_t i = 0; i < vocab; ++i) w[i] = std::exp(double{x[i]} - double{max});
  if (row.top_n_sigma > 0) KeepTopNSigma(row.top_n_sigma, x, sample);
  if (row.top_k > 0 && static_cast<std::size_t>(row.top_k) < sample.survivors.size()) {
    sample.survivors.resize(static_cast<std::size_t>(row.top_k));
  }
  if (row.top_p < 1) KeepTopP(row.top_p, w, sample);
  if (row.min_p > 0) KeepMinP(row.min_p, x, max, sample);
  if (HasXtc(row)) {
    const float best = ExcludeTop(row.xtc_threshold, w, x, sample);
    for (std::uint32_t i = 0; i < vocab; ++i) w[i] = std::exp(double{x[i]} - double{best});
  }
  Race(row, w, sample);
  double total = 0;
  for (const std::int32_t id : sample.survivors) total += w[static_cast<std::size_t>(id)];
  sample.processed_logprob = std::log(w[static_cast<std::size_t>(sample.token)] / total);
  return sample;
}

}  // namespace quire::kernels::internal
