#include <cmath>
#include <limits>
#include <set>

#include "kernels/sampling/sampling.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SamplingEdgeTest : public testing::Test {
 protected:
  SamplingRow Row(const std::vector<float>& logits) {
    SamplingRow row{};
    row.logits = logits.data();
    row.temperature = 1.0f;
    row.top_p = 1.0f;
    row.repetition_penalty = 1.0f;
    row.text_vocab = static_cast<std::uint32_t>(logits.size());
    row.num_logprobs = -1;
    vocab_ = static_cast<std::uint32_t>(logits.size());
    return row;
  }
  SampledRow Run(const SamplingRow& row) {
    SampledRow sampled{};
    sampled.top = top_;
    const absl::Status status = Sample(*backend_, {{&row, 1}, {&sampled, 1}, vocab_});
    EXPECT_TRUE(status.ok()) << status;
    return sampled;
  }
  // Returns the tokens that 4000 seeds sample.
  std::set<std::int32_t> Sampled(SamplingRow row) {
    std::set<std::int32_t> tokens;
    for (row.seed = 0; row.seed < 4000; ++row.seed) tokens.insert(Run(row).token);
    return tokens;
  }

  TestBackend backend_{1};
  std::uint32_t vocab_ = 0;
  TopLogprob top_[16];
};

TEST_F(SamplingEdgeTest, GreedySelectsTheLowestIdOfTies) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  SamplingRow row = Row(logits);
  row.temperature = 0.0f;
  EXPECT_EQ(Run(row).token, 1);
  row.temperature = 0.0009f;
  EXPECT_EQ(Run(row).token, 1);
}

TEST_F(SamplingEdgeTest, NonFiniteRowsAreFlagged) {
  for (std::size_t at : {0u, 7u, 16u, 40u}) {
    for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> logits(41, 0.5f);
      logits[at] = bad;
      SamplingRow row = Row(logits);
      // Masks must not hide non-finite logits.
      const std::int32_t banned[] = {static_cast<std::int32_t>(at)};
      row.banned = banned;
      row.banned_size = 1;
      const SampledRow sampled = Run(row);
      EXPECT_TRUE(sampled.non_finite);
      EXPECT_EQ(sampled.token, -1);
    }
  }
  const std::vector<float> nothing(20, -kInfinity);
  EXPECT_TRUE(Run(Row(nothing)).non_finite);
}

TEST_F(SamplingEdgeTest, ReportsMasksThatAllowNothing) {
  const std::vector<float> logits = {1, 2, -kInfinity, 0};
  SamplingRow row = Row(logits);
  const std::int32_t banned[] = {0, 1};
  row.banned = banned;
  row.banned_size = 2;
  row.text_vocab = 3;
  for (const float temperature : {0.0f, 1.0f}) {
    row.temperature = temperature;
    const SampledRow sampled = Run(row);
    EXPECT_TRUE(sampled.no_survivor);
    EXPECT_FALSE(sampled.non_finite);
    EXPECT_EQ(sampled.token, -1);
  }
}

TEST_F(SamplingEdgeTest, MaskedTokensAreNeverSampled) {
  const std::vector<float> logits(64, 0.0f);
  SamplingRow row = Row(logits);
  std::vector<std::uint8_t> has_text(64, 1);
  has_text[5] = has_text[6] = 0;
  const std::int32_t banned[] = {1, 2, 3};
  row.has_text = has_text.data();
  row.banned = banned;
  row.banned_size = 3;
  row.text_vocab = 12;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 4, 7, 8, 9, 10, 11}));
}

TEST_F(SamplingEdgeTest, MaskAppliesAfterPenaltiesAndBias) {
  std::vector<float> logits(70, 0.0f);
  logits[69] = 9;
  SamplingRow row = Row(logits);
  std::vector<std::uint32_t> allowed = {0, 0, 1u << 4 | 1u << 5};  // 68 and 69
  row.allowed = allowed.data();
  for (const float temperature : {0.0f, 1.0f}) {
    row.temperature = temperature;
    row.bias_size = 0;
    EXPECT_EQ(Run(row).token, 69);
    // No bias makes a masked token eligible. The bias of an allowed token applies.
    const LogitBias bias[] = {{3, 100.0f}, {68, 60.0f}};
    row.bias = bias;
    row.bias_size = 2;
    EXPECT_EQ(Run(row).token, 68);
    const std::int32_t banned[] = {68, 69};
    row.banned = banned;
    row.banned_size = 1;
    EXPECT_EQ(Run(row).token, 69);
    row.banned_size = 2;
    EXPECT_TRUE(Run(row).no_survivor) << "mask and banned ids contradict each other";
    row.banned_size = 0;
  }
  // Log-probabilities stay those of the model.
  row.num_logprobs = 1;
  row.bias_size = 0;
  allowed[2] = 1u << 4;
  const SampledRow sampled = Run(row);
  EXPECT_EQ(sampled.token, 68);
  EXPECT_EQ(sampled.top[0].token, 69);
  EXPECT_EQ(sampled.rank, 1 + 69);
}

TEST_F(SamplingEdgeTest, TopKKeepsLowIdsAmongEqualOnes) {
  const std::vector<float> logits = {0, 1, 0, 1, 0, 1, 0, 1};
  SamplingRow row = Row(logits);
  row.top_k = 3;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 3, 5}));
  row.top_k = 6;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1, 2, 3, 5, 7}));
  row.top_k = 8;
  EXPECT_EQ(Sampled(row).size(), 8u);
  row.top_k = 1;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1}));
}

TEST_F(SamplingEdgeTest, TopPKeepsTheShortestPrefixThatReachesIt) {
  // The probabilities are 1/2, 1/4, 1/8, 1/8 up to rounding.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.125f)};
  SamplingRow row = Row(logits);
  row.top_p = 0.49f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1}));
  row.top_p = 0.51f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 2}));
  row.top_p = 0.8f;  // one of the equal ones, with the lower id
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1, 2}));
  row.top_p = 0.9f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1, 2, 3}));
  row.top_p = 1e-9f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1}));
}

TEST_F(SamplingEdgeTest, TopPAppliesAfterTopK) {
  const std::vector<float> logits = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  SamplingRow row = Row(logits);
  row.top_k = 4;
  row.top_p = 0.5f;  // of four tokens, not of ten
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1}));
}

TEST_F(SamplingEdgeTest, MinPKeepsItsThreshold) {
  const std::vector<float> logits = {0.0f, std::log(0.5f), std::log(0.25f)};
  SamplingRow row = Row(logits);
  row.min_p = 0.5f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1}));
  row.min_p = 1.0f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0}));
}

TEST_F(SamplingEdgeTest, HugeLogitsStayFinite) {
  std::vector<float> logits(20, -3e38f);
  logits[4] = 3e38f;
  SamplingRow row = Row(logits);
  row.temperature = 0.002f;
  const std::vector<TokenCount> history = {{4, 1}, {5, 1}};
  row.history = history.data();
  row.history_size = 2;
  row.repetition_penalty = 0.5f;  // 3e38 / 0.5 overflows
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{4}));
  logits[4] = -3e38f;
  row.repetition_penalty = 1.0f;
  EXPECT_GT(Sampled(row).size(), 10u);  // all are equal again
}

TEST_F(SamplingEdgeTest, NegativeZeroTiesWithZero) {
  const std::vector<float> logits = {-0.0f, 0.0f, -1.0f, -0.0f};
  SamplingRow row = Row(logits);
  row.top_k = 2;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 1}));
}

TEST_F(SamplingEdgeTest, TopNSigmaIsRelativeToTheBest) {
  const std::vector<float> logits = {-2, 4, 3, 0, 0, -kInfinity};
  SamplingRow row = Row(logits);
  constexpr float kSigma = 2.1908902f;  // of -2, 4, 3, 0, 0: mean 1, variance 24 / 5
  row.top_n_sigma = 0.99f / kSigma;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1}));
  row.top_n_sigma = 1.01f / kSigma;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 2}));
  row.top_n_sigma = 4.01f / kSigma;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 2, 3, 4}));
  // The tokens are the same at any temperature, since the threshold scales with the logits.
  row.temperature = 8;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 2, 3, 4}));
  row.top_n_sigma = 1.01f / kSigma;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1, 2}));
  // The filter precedes top-p. Of the two remaining tokens, the best has 73 % of the probability.
  row.temperature = 1;
  row.top_p = 0.72f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{1}));
}

TEST_F(SamplingEdgeTest, TopNSigmaOfEqualLogitsKeepsAll) {
  const std::vector<float> logits(40, 0.1f);
  SamplingRow row = Row(logits);
  row.top_n_sigma = 1e-3f;
  EXPECT_EQ(Sampled(row).size(), 40u);
}

TEST_F(SamplingEdgeTest, XtcKeepsTheLeastLikelyOfTheTop) {
  // Probabilities are 0.4, 0.3, 0.2 and 0.1.
  const std::vector<float> logits = {std::log(0.3f), std::log(0.4f), std::log(0.1f),
                                     std::log(0.2f)};
  SamplingRow row = Row(logits);
  row.xtc_probability = 1;
  row.xtc_threshold = 0.15f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{3, 2}));
  row.xtc_threshold = 0.25f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0, 3, 2}));
  row.xtc_threshold = 0.35f;  // a single token is the last of the top
  EXPECT_EQ(Sampled(row).size(), 4u);
  row.xtc_threshold = 0.45f;
  EXPECT_EQ(Sampled(row).size(), 4u);
  row.xtc_threshold = 0;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{2}));
  // After min-p the probabilities are renormalized to 4/7 and 3/7.
  row.min_p = 0.7f;
  row.xtc_threshold = 0.42f;
  EXPECT_EQ(Sampled(row), (std::set<std::int32_t>{0}));
  // Filters do not apply to greedy rows.
  row.temperature = 0;
  EXPECT_EQ(Run(row).token, 1);
}

// The random decision uses the sample's key and is true as often as configured.
TEST_F(SamplingEdgeTest, XtcHasTheConfiguredProbability) {
  const std::vector<float> logits = {0, 0};
  SamplingRow row = Row(logits);
  row.xtc_threshold = 0.3f;
  for (const float probability : {0.0f, 0.25f, 0.9f, 1.0f}) {
    row.xtc_probability = probability;
    int happened = 0;
    for (row.position = 0; row.position < 10000; ++row.position) {
      happened += internal::HasXtc(row) ? 1 : 0;
    }
    // Five standard deviations of 10000 decisions are at most 250.
    EXPECT_NEAR(happened, 10000 * static_cast<double>(probability), probability < 1 ? 250 : 0);
  }
  row.xtc_probability = 1;
  row.xtc_threshold = 0.51f;  // no two tokens reach it
  EXPECT_FALSE(internal::HasXtc(row));
}

TEST_F(SamplingEdgeTest, PenaltiesFollowTheirOrder) {
  // Repetition applies to prompt and output, the others to output only, bias last.
  const std::vector<float> logits = {4.0f, 4.0f, 4.0f, -1.0f};
  SamplingRow row = Row(logits);
  row.temperature = 0.0f;
  row.repetition_penalty = 2.0f;
  row.frequency_penalty = 0.5f;
  row.presence_penalty = 0.25f;
  std::vector<TokenCount> history = {{0, 0}, {1, 1}};  // 2.0 and 2.0 - 0.5 - 0.25 = 1.25
  row.history = history.data();
  row.history_size = 2;
  EXPECT_EQ(Run(row).token, 2);
  history.push_back({2, 3});  // 2.0 - 1.5 - 0.25 = 0.25
  row.history = history.data();
  row.history_size = 3;
  EXPECT_EQ(Run(row).token, 0);
  const LogitBias bias[] = {{1, 0.75f}};  // 2.0 is a tie, so the lower id wins
  row.bias = bias;
  row.bias_size = 1;
  EXPECT_EQ(Run(row).token, 0);
  const LogitBias more[] = {{1, 0.76f}};
  row.bias = more;
  EXPECT_EQ(Run(row).token, 1);
}

TEST_F(SamplingEdgeTest, ChoiceAndPositionChangeTheSample) {
  const std::vector<float> logits(1000, 0.0f);
  SamplingRow row = Row(logits);
  std::set<std::int32_t> tokens;
  for (row.choice = 0; row.choice < 10; ++row.choice) {
    for (row.position = 0; row.position < 10; ++row.position) tokens.insert(Run(row).token);
  }
  EXPECT_GT(tokens.size(), 80u);
}

TEST_F(SamplingEdgeTest, TopLogprobsExcludeIdsWithoutText) {
  const std::vector<float> logits = {5, 4, 3, 2, -kInfinity};
  SamplingRow row = Row(logits);
  const std::uint8_t has_text[] = {0, 1, 1, 1, 1};
  row.has_text = has_text;
  row.temperature = 0.0f;
  row.num_logprobs = 10;
  const SampledRow sampled = Run(row);
  EXPECT_EQ(sampled.token, 1);
  EXPECT_EQ(sampled.rank, 1);
  ASSERT_EQ(sampled.num_top, 3u);
  EXPECT_EQ(top_[0].token, 1);
  EXPECT_EQ(top_[2].token, 3);
  // The sum is over all rows of the matrix, with or without text.
  EXPECT_NEAR(top_[0].logprob, -std::log(std::exp(1.0) + 1 + std::exp(-1.0) + std::exp(-2.0)),
              1e-6);
  EXPECT_EQ(sampled.logprob, top_[0].logprob);
}

TEST_F(SamplingEdgeTest, RejectsParametersOutOfRange) {
  const std::vector<float> logits(8, 0.0f);
  const auto message = [&](auto change) {
    SamplingRow row = Row(logits);
    change(row);
    SampledRow sampled{};
    const absl::Status status = Sample(*backend_, {{&row, 1}, {&sampled, 1}, vocab_});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TokenCount history[] = {{8, 1}};
  const LogitBias bias[] = {{0, kInfinity}};
  const std::int32_t banned[] = {-1};
  using testing::HasSubstr;
  EXPECT_THAT(message([&](auto& r) { r.temperature = nan; }), HasSubstr("temperature"));
  EXPECT_THAT(message([&](auto& r) { r.temperature = 101; }), HasSubstr("101"));
  EXPECT_THAT(message([&](auto& r) { r.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(message([&](auto& r) { r.min_p = 1.5f; }), HasSubstr("min_p"));
  EXPECT_THAT(message([&](auto& r) { r.top_n_sigma = -1.0f; }), HasSubstr("top_n_sigma"));
  EXPECT_THAT(message([&](auto& r) { r.top_n_sigma = kInfinity; }), HasSubstr("top_n_sigma"));
  EXPECT_THAT(message([&](auto& r) { r.xtc_probability = 1.1f; }), HasSubstr("xtc_probability"));
  EXPECT_THAT(message([&](auto& r) { r.xtc_threshold = -0.1f; }), HasSubstr("xtc_threshold"));
  EXPECT_THAT(message([&](auto& r) { r.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(message([&](auto& r) { r.repetition_penalty = 0; }), HasSubstr("repetition"));
  EXPECT_THAT(message([&](auto& r) { r.presence_penalty = nan; }), HasSubstr("presence"));
  EXPECT_THAT(message([&](auto& r) { r.frequency_penalty = kInfinity; }), HasSubstr("frequency"));
  EXPECT_THAT(message([&](auto& r) {
                r.history = history;
                r.history_size = 1;
              }),
              HasSubstr("history token 8"));
  EXPECT_THAT(message([&](auto& r) {
                r.bias = bias;
                r.bias_size = 1;
              }),
              HasSubstr("bias"));
  EXPECT_THAT(message([&](auto& r) {
                r.banned = banned;
                r.banned_size = 1;
              }),
              HasSubstr("banned token -1"));
  EXPECT_THAT(message([&](auto& r) { r.num_logprobs = 2; }), HasSubstr("top is null"));
}

TEST_F(SamplingEdgeTest, ScoreFlagsNonFiniteAndRejectsBadRows) {
  std::vector<float> logits = {1, kInfinity, 0};
  TokenLogprob token{.token = 0, .num_logprobs = 0, .logits = logits.data()};
  ASSERT_TRUE(ComputeLogprobs(*backend_, {{&token, 1}, 3, 3, nullptr}).ok());
  EXPECT_TRUE(token.non_finite);
  token.token = 3;
  EXPECT_FALSE(ComputeLogprobs(*backend_, {{&token, 1}, 3, 3, nullptr}).ok());
}

}  // namespace
}  // namespace quire::kernels
