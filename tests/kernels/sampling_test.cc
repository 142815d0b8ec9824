#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/sampling_reference.h"

namespace quire::kernels {
namespace {

SamplingRow PlainRow(const float* logits, std::uint32_t vocab) {
  SamplingRow row{};
  row.logits = logits;
  row.temperature = 1.0f;
  row.top_p = 1.0f;
  row.repetition_penalty = 1.0f;
  row.text_vocab = vocab;
  row.num_logprobs = -1;
  return row;
}

// A random row with all data that it points to.
struct RandomRow {
  RandomRow(std::uint32_t seed, std::uint32_t vocab_size) : vocab(vocab_size) {
    std::mt19937 rng(seed);
    const auto coin = [&](int sides) {
      return std::uniform_int_distribution<int>(0, sides - 1)(rng) == 0;
    };
    const auto uniform = [&](float low, float high) {
      return std::uniform_real_distribution<float>(low, high)(rng);
    };
    const auto token = [&] {
      return std::uniform_int_distribution<std::int32_t>(0,
                                                         static_cast<std::int32_t>(vocab) - 1)(rng);
    };
    logits = RandomFloats(vocab, seed + 1, uniform(0.5f, 6.0f));
    if (coin(3)) {
      for (float& z : logits) z = std::round(z * 2) / 2;  // gives many ties
    }
    if (coin(4)) {
      for (float& z : logits) {
        if (coin(3)) z = -std::numeric_limits<float>::infinity();
      }
      logits[0] = 0;
    }
    row = PlainRow(logits.data(), vocab);
    row.temperature = coin(6) ? 0.0f : uniform(0.05f, 2.5f);
    if (coin(2)) row.top_k = std::uniform_int_distribution<std::int32_t>(1, 60)(rng);
    if (coin(2)) row.top_p = uniform(0.01f, 1.0f);
    if (coin(3)) row.min_p = uniform(0.0f, 0.5f);
    if (coin(3)) row.top_n_sigma = uniform(0.01f, 4.0f);
    if (coin(3)) row.xtc_probability = uniform(0.3f, 1.0f);
    row.xtc_threshold = coin(6) ? 0.0f : std::pow(10.0f, uniform(-4.0f, -0.2f));
    if (coin(3)) row.repetition_penalty = uniform(0.5f, 2.0f);
    if (coin(3)) row.presence_penalty = uniform(-2.0f, 2.0f);
    if (coin(3)) row.frequency_penalty = uniform(-2.0f, 2.0f);
    std::map<std::int32_t, std::int32_t> seen;
    for (int i = 0; i < 20; ++i) seen[token()] = std::uniform_int_distribution<int>(0, 5)(rng);
    for (const auto& [id, count] : seen) history.push_back({id, count});
    for (int i = 0; i < 5; ++i) bias.push_back({token(), uniform(-10.0f, 10.0f)});
    for (int i = 0; i < 3; ++i) banned.push_back(token());
    row.history = history.data();
    row.history_size = static_cast<std::uint32_t>(history.size());
    if (coin(2)) row.bias_size = static_cast<std::uint32_t>(bias.size());
    row.bias = bias.data();
    if (coin(2)) row.banned_size = static_cast<std::uint32_t>(banned.size());
    row.banned = banned.data();
    if (coin(3)) row.text_vocab = vocab - vocab / 8;
    has_text.assign(vocab, 1);
    for (std::uint8_t& text : has_text) text = coin(10) ? 0 : 1;
    if (coin(3)) row.has_text = has_text.data();
    row.seed = rng();
    row.seed = row.seed << 32 | rng();
    row.position = static_cast<std::uint32_t>(rng());
    row.choice = rng() % 4;
    row.num_logprobs = static_cast<std::int32_t>(rng() % 7) - 1;
    MakeMask(seed + 2);
    row.wants_processed_logprob = coin(2);
  }

  // Allows few, most or half of the tokens, or has no mask. Bits past the vocabulary are undefined.
  void MakeMask(std::uint32_t mask_seed) {
    std::mt19937 rng(mask_seed);
    allowed.resize(MaskWords(vocab));
    const auto kind = rng() % 6;
    for (std::uint32_t& word : allowed) {
      word = kind == 0 ? ~0u << (rng() % 32) : static_cast<std::uint32_t>(rng());
      if (kind == 1 && rng() % 8 != 0) word = 0;
      if (kind == 2 && rng() % 8 != 0) word = ~0u;
    }
    if (kind < 4) row.allowed = allowed.data();
  }

  std::uint32_t vocab;
  std::vector<float> logits;
  std::vector<TokenCount> history;
  std::vector<LogitBias> bias;
  std::vector<std::int32_t> banned;
  std::vector<std::uint8_t> has_text;
  std::vector<std::uint32_t> allowed;
  SamplingRow row;
};

bool HasText(const SamplingRow& row, std::uint32_t id) {
  return id < row.text_vocab && (row.has_text == nullptr || row.has_text[id] != 0);
}

// Compares logprob, rank and top of a sampled row with the sorted row in double.
void CheckLogprobs(const RandomRow& r, const SampledRow& sampled,
                   const internal::ReferenceSample& exact) {
  if (r.row.num_logprobs < 0) {
    EXPECT_EQ(sampled.num_top, 0u);
    EXPECT_EQ(sampled.rank, 0);
    return;
  }
  const auto token = static_cast<std::size_t>(sampled.token);
  EXPECT_NEAR(sampled.logprob, exact.logprobs[token],
              2e-6 + 1e-6 * std::abs(exact.logprobs[token]));
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < r.vocab; ++i) {
    if (HasText(r.row, i)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return r.logits[a] > r.logits[b]; });
  const auto at = std::find(order.begin(), order.end(), token) - order.begin();
  EXPECT_EQ(sampled.rank, at + 1);
  std::erase_if(order, [&](std::uint32_t id) { return std::isinf(r.logits[id]); });
  ASSERT_EQ(sampled.num_top,
            std::min<std::size_t>(static_cast<std::size_t>(r.row.num_logprobs), order.size()));
  for (std::uint32_t i = 0; i < sampled.num_top; ++i) {
    EXPECT_EQ(sampled.top[i].token, static_cast<std::int32_t>(order[i]));
    EXPECT_NEAR(sampled.top[i].logprob, exact.logprobs[order[i]],
                2e-6 + 1e-6 * std::abs(exact.logprobs[order[i]]));
  }
}

// Returns the history once the sample in flight is known.
std::vector<TokenCount> Completed(std::vector<TokenCount> history, std::int32_t token) {
  for (TokenCount& seen : history) {
    if (seen.token != token) continue;
    ++seen.output_count;
    return history;
  }
  history.push_back({.token = token, .output_count = 1});
  return history;
}

TEST(SamplingTest, SampleInFlightCountsAsOutputToken) {
  const TestBackend backend(1);
  constexpr std::uint32_t kVocab = 60;
  int changed = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    RandomRow r(seed, kVocab);
    r.row.num_logprobs = -1;
    if (seed % 4 != 0) {
      r.row.temperature = 0;
      r.row.repetition_penalty = 3.0f;
      r.row.presence_penalty = 2.0f;
    }
    // The token is the one that the row would sample again, one of the history, or the placeholder
    // of a step without a sample.
    SampledRow again{};
    ASSERT_TRUE(Sample(*backend, {{&r.row, 1}, {&again, 1}, kVocab}).ok());
    std::int32_t in_flight = again.token;
    if (seed % 3 == 1) in_flight = r.history[seed % r.history.size()].token;
    if (seed % 16 == 15) in_flight = -1;
    const std::vector<TokenCount> completed =
        in_flight < 0 ? r.history : Completed(r.history, in_flight);
    SamplingRow known = r.row, ahead = r.row;
    known.history = completed.data();
    known.history_size = static_cast<std::uint32_t>(completed.size());
    ahead.sample_in_flight = &in_flight;
    const SamplingRow rows[] = {known, ahead};
    SampledRow sampled[2];
    ASSERT_TRUE(Sample(*backend, {rows, sampled, kVocab}).ok());
    EXPECT_EQ(sampled[1].token, sampled[0].token) << seed;
    EXPECT_EQ(internal::SampleCpu(ahead, kVocab).token, internal::SampleCpu(known, kVocab).token)
        << seed;
    changed += again.token != sampled[0].token;
  }
  EXPECT_GT(changed, 100) << "the sample in flight changes nothing";
}

TEST(SamplingParityTest, EqualsTheSortedReferenceOnRandomRows) {
  const TestBackend backend(2);
  int near_decisions = 0, greedy = 0, empty = 0, xtc = 0, sigma = 0;
  double sum_of_processed = 0;
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const std::uint32_t rows = isa == AvailableIsas().front() ? 6000 : 600;
    for (std::uint32_t seed = 0; seed < rows; ++seed) {
      const std::uint32_t vocab = seed % 50 == 0 ? 33000 : 9 + seed % 700;
      RandomRow r(seed * 3, vocab);
      std::vector<TopLogprob> top(8);
      SampledRow sampled{};
      sampled.top = top.data();
      ASSERT_TRUE(Sample(*backend, {{&r.row, 1}, {&sampled, 1}, vocab}).ok());
      const auto exact = internal::SampleCpu(r.row, vocab);
      SamplingRow without = r.row;
      without.top_n_sigma = 0;
      without.xtc_probability = 0;
      const auto survivors = exact.survivors.size();
      const bool is_less = survivors < internal::SampleCpu(without, vocab).survivors.size();
      xtc += is_less && internal::HasXtc(r.row) && r.row.top_n_sigma == 0;
      sigma += is_less && !internal::HasXtc(r.row);
      ASSERT_EQ(sampled.no_survivor, exact.no_survivor) << seed;
      ASSERT_FALSE(sampled.non_finite) << seed;
      empty += exact.no_survivor;
      greedy += r.row.temperature < 0.001f;
      if (exact.no_survivor) {
        EXPECT_EQ(sampled.token, -1);
        continue;
      }
      if (exact.margin < 1e-6) {
        ++near_decisions;
        continue;
      }
      ASSERT_EQ(sampled.token, exact.token)
          << isa << " seed " << seed << " margin " << exact.margin;
      CheckLogprobs(r, sampled, exact);
      const double processed = r.row.wants_processed_logprob ? exact.processed_logprob : 0;
      EXPECT_NEAR(sampled.processed_logprob, processed, 2e-6 + 1e-6 * std::abs(processed)) << seed;
      sum_of_processed += processed;
    }
  }
  // Asserts that the comparison was neither skipped nor trivial.
  EXPECT_LE(near_decisions, 20);
  EXPECT_GE(greedy, 500);
  EXPECT_GE(xtc, 200);
  EXPECT_GE(sigma, 500);
  EXPECT_LE(empty, 700);
  EXPECT_LT(sum_of_processed, -1000);
}

TEST(SamplingParityTest, RowsDoNotInfluenceEachOther) {
  constexpr std::uint32_t kVocab = 5000;
  std::vector<RandomRow> rows;
  for (std::uint32_t seed = 0; seed < 64; ++seed) rows.emplace_back(seed, kVocab);
  std::vector<SampledRow> alone(64);
  std::vector<std::vector<TopLogprob>> tops(64, std::vector<TopLogprob>(8));
  const TestBackend one(1);
  for (std::size_t i = 0; i < 64; ++i) {
    alone[i].top = tops[i].data();
    ASSERT_TRUE(Sample(*one, {{&rows[i].row, 1}, {&alone[i], 1}, kVocab}).ok());
  }
  for (const int threads : {1, 2, 3, 7}) {
    const TestBackend backend(threads);
    std::vector<std::size_t> order(64);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(threads)));
    std::vector<SamplingRow> batch;
    for (const std::size_t i : order) batch.push_back(rows[i].row);
    std::vector<SampledRow> sampled(64);
    std::vector<std::vector<TopLogprob>> batch_tops(64, std::vector<TopLogprob>(8));
    for (std::size_t i = 0; i < 64; ++i) sampled[i].top = batch_tops[i].data();
    ASSERT_TRUE(Sample(*backend, {batch, sampled, kVocab}).ok());
    for (std::size_t i = 0; i < 64; ++i) {
      const SampledRow& expected = alone[order[i]];
      EXPECT_EQ(sampled[i].token, expected.token);
      EXPECT_EQ(std::memcmp(&sampled[i].logprob, &expected.logprob, 4), 0);
      EXPECT_EQ(std::memcmp(&sampled[i].processed_logprob, &expected.processed_logprob, 4), 0);
      EXPECT_EQ(sampled[i].rank, expected.rank);
      ASSERT_EQ(sampled[i].num_top, expected.num_top);
      EXPECT_EQ(std::memcmp(sampled[i].top, expected.top, expected.num_top * sizeof(TopLogprob)),
                0);
    }
  }
}

TEST(SamplingParityTest, LogprobsEqualSampleBitwise) {
  const TestBackend backend(2);
  constexpr std::uint32_t kVocab = 5000;
  const auto logits = RandomFloats(kVocab, 40, 3.0f);
  SamplingRow row = PlainRow(logits.data(), kVocab);
  row.num_logprobs = 5;
  row.text_vocab = 4800;
  TopLogprob top[5], prompt_logprob_top[5];
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    row.seed = seed;
    SampledRow sampled{.top = top};
    ASSERT_TRUE(Sample(*backend, {{&row, 1}, {&sampled, 1}, kVocab}).ok());
    TokenLogprob logprob_tokens{.token = sampled.token,
                                .num_logprobs = 5,
                                .logits = logits.data(),
                                .top = prompt_logprob_top};
    ASSERT_TRUE(ComputeLogprobs(*backend, {{&logprob_tokens, 1}, kVocab, 4800, nullptr}).ok());
    EXPECT_EQ(std::memcmp(&logprob_tokens.logprob, &sampled.logprob, 4), 0);
    EXPECT_EQ(logprob_tokens.rank, sampled.rank);
    ASSERT_EQ(logprob_tokens.num_top, 5u);
    EXPECT_EQ(std::memcmp(top, prompt_logprob_top, sizeof(top)), 0);
  }
}

// Samples over positions must follow the distribution that the filters leave.
void ExpectDistribution(SamplingRow row, std::uint32_t vocab, int samples) {
  const TestBackend backend(2);
  std::vector<int> counts(vocab, 0);
  std::vector<SamplingRow> rows(1000, row);
  std::vector<SampledRow> sampled(1000);
  for (int done = 0; done < samples; done += 1000) {
    for (std::uint32_t i = 0; i < 1000; ++i) {
      rows[i].position = static_cast<std::uint32_t>(done) + i;
    }
    ASSERT_TRUE(Sample(*backend, {rows, sampled, vocab}).ok());
    for (const SampledRow& s : sampled) ++counts[static_cast<std::size_t>(s.token)];
  }
  const auto exact = internal::SampleCpu(row, vocab);
  double total = 0;
  for (const std::int32_t id : exact.survivors) {
    total += std::exp(double{row.logits[id]} / row.temperature);
  }
  double chi2 = 0;
  int freedom = -1;
  int inside = 0;
  for (const std::int32_t id : exact.survivors) {
    const double expected = samples * std::exp(double{row.logits[id]} / row.temperature) / total;
    inside += counts[static_cast<std::size_t>(id)];
    if (expected < 5) continue;
    chi2 += std::pow(counts[static_cast<std::size_t>(id)] - expected, 2) / expected;
    ++freedom;
  }
  EXPECT_EQ(inside, samples);  // nothing outside the remaining tokens
  ASSERT_GE(freedom, 2);
  // By Wilson and Hilferty, the cube root of chi2 / freedom is nearly normal, and 3.72 is p = 1e-4.
  const double f = 2.0 / (9.0 * freedom);
  EXPECT_LT((std::cbrt(chi2 / freedom) - (1 - f)) / std::sqrt(f), 3.72);
}

TEST(SamplingStatisticsTest, SamplesFollowTheDistribution) {
  const auto logits = RandomFloats(50, 50, 1.5f);
  SamplingRow row = PlainRow(logits.data(), 50);
  row.seed = 12345;
  ExpectDistribution(row, 50, 400000);
  row.temperature = 0.5f;
  row.top_k = 20;
  ExpectDistribution(row, 50, 200000);
  row.temperature = 1.7f;
  row.top_k = 0;
  row.top_p = 0.8f;
  ExpectDistribution(row, 50, 200000);
  row.top_p = 1.0f;
  row.min_p = 0.2f;
  row.choice = 3;
  ExpectDistribution(row, 50, 200000);
}

}  // namespace
}  // namespace quire::kernels
