// The router compared with double precision and a sort, and with numbers computed by hand, and the
// permutation of rows to experts and back.

#include "kernels/moe/router.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/moe/expert_rows.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

struct RouterCase {
  const char* name;
  std::uint32_t experts;
  std::uint32_t top_k;
  RouterScore score;
  bool bias = false;
  std::uint32_t groups = 1;
  std::uint32_t groups_kept = 1;
  RouterGroupScore group_score = RouterGroupScore::kMax;
  bool renormalize = false;
  float renorm_eps = 0;
  float weight_scale = 1;
};

const RouterCase kCases[] = {
    {"mixtral", 8, 2, RouterScore::kSoftmaxAll, false, 1, 1, RouterGroupScore::kMax, true},
    {"qwen3_moe", 128, 8, RouterScore::kSoftmaxAll, false, 1, 1, RouterGroupScore::kMax, true},
    {"qwen3_moe_plain", 128, 8, RouterScore::kSoftmaxAll},
    {"gpt_oss", 32, 4, RouterScore::kSoftmaxChosen},
    {"deepseek_v2", 160, 6, RouterScore::kSoftmaxAll, false, 8, 3, RouterGroupScore::kMax, false, 0,
     16.0f},
    {"deepseek_v3", 256, 8, RouterScore::kSigmoid, true, 8, 4, RouterGroupScore::kTop2Sum, true,
     1e-20f, 2.5f},
    {"llama_4", 16, 1, RouterScore::kSigmoidChosen},
    {"all", 5, 5, RouterScore::kSoftmaxAll, true},
    {"one", 1, 1, RouterScore::kSigmoid},
};

struct Routed {
  std::vector<std::uint32_t> experts;
  std::vector<float> weights;
};

RouterParams ParamsOf(const RouterCase& c, const std::vector<float>& logits, const float* bias,
                      std::uint32_t rows, Routed* out) {
  out->experts.assign(std::size_t{rows} * c.top_k, UINT32_MAX);
  out->weights.assign(std::size_t{rows} * c.top_k, std::numeric_limits<float>::quiet_NaN());
  return {.logits = logits.data(),
          .choice_bias = bias,
          .experts = out->experts.data(),
          .weights = out->weights.data(),
          .logits_stride = static_cast<std::int64_t>(logits.size() / rows),
          .num_rows = rows,
          .num_experts = c.experts,
          .top_k = c.top_k,
          .score = c.score,
          .groups = c.groups,
          .groups_kept = c.groups_kept,
          .group_score = c.group_score,
          .renormalize = c.renormalize,
          .renorm_eps = c.renorm_eps,
          .weight_scale = c.weight_scale};
}

Routed Route(const RouterCase& c, const std::vector<float>& logits, const float* bias,
             std::uint32_t rows, int threads = 1) {
  const TestBackend backend(threads);
  Routed out;
  const RouterParams params = ParamsOf(c, logits, bias, rows, &out);
  EXPECT_TRUE(Router(*backend, params).ok());
  return out;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::vector<double> SoftmaxOf(std::vector<double> x) {
  const double largest = *std::max_element(x.begin(), x.end());
  for (double& value : x) value = std::exp(value - largest);
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  for (double& value : x) value /= sum;
  return x;
}

// Routes one row by sorting.
void ExactRoute(const RouterCase& c, const float* logits, const float* bias,
                std::vector<std::uint32_t>* experts, std::vector<double>* weights) {
  std::vector<double> scores(logits, logits + c.experts);
  if (c.score == RouterScore::kSoftmaxAll) scores = SoftmaxOf(scores);
  if (c.score == RouterScore::kSigmoid) {
    for (double& score : scores) score = Sigmoid(score);
  }
  std::vector<double> choice = scores;
  for (std::uint32_t e = 0; e < c.experts && bias != nullptr; ++e) choice[e] += double{bias[e]};
  const auto best_first = [](const std::vector<double>& values) {
    std::vector<std::uint32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return values[a] > values[b]; });
    return order;
  };
  const std::uint32_t per_group = c.experts / c.groups;
  std::vector<double> group_values;
  for (std::uint32_t g = 0; g < c.groups; ++g) {
    std::vector<double> in_group(choice.begin() + g * per_group,
                                 choice.begin() + (g + 1) * per_group);
    std::sort(in_group.rbegin(), in_group.rend());
    group_values.push_back(c.group_score == RouterGroupScore::kMax ? in_group[0]
                                                                   : in_group[0] + in_group[1]);
  }
  std::vector<std::uint32_t> kept = best_first(group_values);
  kept.resize(c.groups_kept);
  std::vector<std::uint32_t> order;
  for (const std::uint32_t e : best_first(choice)) {
    if (std::find(kept.begin(), kept.end(), e / per_group) != kept.end()) order.push_back(e);
  }
  order.resize(c.top_k);
  std::vector<double> chosen;
  for (const std::uint32_t e : order) chosen.push_back(scores[e]);
  if (c.score == RouterScore::kSoftmaxChosen) chosen = SoftmaxOf(chosen);
  if (c.score == RouterScore::kSigmoidChosen) {
    for (double& score : chosen) score = Sigmoid(score);
  }
  const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0) + double{c.renorm_eps};
  for (double& weight : chosen) {
    if (c.renormalize) weight /= sum;
    weight *= double{c.weight_scale};
  }
  experts->insert(experts->end(), order.begin(), order.end());
  weights->insert(weights->end(), chosen.begin(), chosen.end());
}

class RouterTest : public testing::TestWithParam<RouterCase> {};

// Half of the rows have logits in steps of 0.5, so that many are equal.
TEST_P(RouterTest, EqualsDoublePrecisionWithTiesToTheLowerNumber) {
  const RouterCase& c = GetParam();
  constexpr std::uint32_t kRows = 64;
  const std::size_t stride = c.experts + 3;
  auto logits = RandomFloats(kRows * stride, 11, 2.0f);
  for (std::size_t i = 0; i < logits.size() / 2; ++i) {
    logits[i] = std::round(logits[i] * 2) / 2;
  }
  auto bias = RandomFloats(c.experts, 12, 0.2f);
  for (float& value : bias) value = std::round(value * 8) / 8;
  const float* const used_bias = c.bias ? bias.data() : nullptr;
  const Routed got = Route(c, logits, used_bias, kRows);
  std::vector<std::uint32_t> experts;
  std::vector<double> weights;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    ExactRoute(c, logits.data() + m * stride, used_bias, &experts, &weights);
  }
  EXPECT_EQ(got.experts, experts);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(got.weights[i], weights[i], 3e-6 * weights[i]) << "place " << i;
  }
}

TEST_P(RouterTest, RowsAreBatchInvariant) {
  const RouterCase& c = GetParam();
  constexpr std::uint32_t kRows = 600;  // large enough for several threads, also with one expert
  const auto logits = RandomFloats(std::size_t{kRows} * c.experts, 13, 2.0f);
  const auto bias = RandomFloats(c.experts, 14, 0.2f);
  const float* const used_bias = c.bias ? bias.data() : nullptr;
  const Routed together = Route(c, logits, used_bias, kRows);
  const Routed threaded = Route(c, logits, used_bias, kRows, 3);
  EXPECT_EQ(together.experts, threaded.experts);
  EXPECT_EQ(std::memcmp(together.weights.data(), threaded.weights.data(),
                        together.weights.size() * sizeof(float)),
            0);
  for (const std::uint32_t m : {0u, 1u, 77u, kRows - 1}) {
    const auto from = static_cast<std::ptrdiff_t>(m * c.experts);
    const std::vector<float> row(logits.begin() + from,
                                 logits.begin() + from + static_cast<std::ptrdiff_t>(c.experts));
    const Routed alone = Route(c, row, used_bias, 1);
    EXPECT_TRUE(std::equal(alone.experts.begin(), alone.experts.end(),
                           together.experts.begin() + m * c.top_k));
    EXPECT_EQ(std::memcmp(alone.weights.data(), together.weights.data() + m * c.top_k,
                          c.top_k * sizeof(float)),
              0);
  }
}

TEST_P(RouterTest, NeverChoosesAnExpertTwice) {
  const RouterCase& c = GetParam();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float odd : {kNan, kInfinity, -kInfinity}) {
    for (const std::size_t every : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
      auto logits = RandomFloats(c.experts, 15);
      for (std::size_t e = 0; e < logits.size(); e += every) logits[e] = odd;
      const Routed got = Route(c, logits, nullptr, 1);
      const std::set<std::uint32_t> distinct(got.experts.begin(), got.experts.end());
      EXPECT_EQ(distinct.size(), c.top_k);
      EXPECT_LT(*distinct.rbegin(), c.experts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RouterTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// softmax(1 2 3 4) = 0.0320586 0.0871443 0.2368828 0.6439143.
TEST(RouterByHandTest, SoftmaxThenChoiceThenRenormalization) {
  RouterCase c{"by_hand", 4, 2, RouterScore::kSoftmaxAll};
  const std::vector<float> logits = {1, 4, 3, 2};
  Routed got = Route(c, logits, nullptr, 1);
  EXPECT_EQ(got.experts, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_NEAR(got.weights[0], 0.6439143, 1e-6);
  EXPECT_NEAR(got.weights[1], 0.2368828, 1e-6);
  c.renormalize = true;
  got = Route(c, logits, nullptr, 1);
  EXPECT_NEAR(got.weights[0], 0.7310586, 1e-6);
  EXPECT_NEAR(got.weights[1], 0.2689414, 1e-6);
  c.renormalize = false;
  c.score = RouterScore::kSoftmaxChosen;
  got = Route(c, logits, nullptr, 1);
  EXPECT_NEAR(got.weights[0], 0.7310586, 1e-6);
}

// Sigmoids 0.5 0.7310586 0.5 0.8807971. With the bias, the choice scores are 0.9 0.7310586 0.9
// 0.3807971. The bias does not enter the weights.
TEST(RouterByHandTest, BiasAffectsChoiceButNotWeights) {
  const RouterCase c{"by_hand", 4, 2, RouterScore::kSigmoid};
  const std::vector<float> bias = {0.4f, 0, 0.4f, -0.5f};
  const Routed got = Route(c, {0, 1, 0, 2}, bias.data(), 1);
  EXPECT_EQ(got.experts, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5f, 0.5f}));
}

// Groups (5 0) (4 4) (3 3). The best two experts of the second and third group add up to 8 and 6,
// those of the first to 5, although it has the best expert.
TEST(RouterByHandTest, SelectsGroupsByScore) {
  RouterCase c{"by_hand", 6, 2, RouterScore::kSoftmaxChosen};
  c.groups = 3;
  c.groups_kept = 2;
  c.group_score = RouterGroupScore::kTop2Sum;
  const std::vector<float> logits = {5, 0, 4, 4, 3, 3};
  EXPECT_EQ(Route(c, logits, nullptr, 1).experts, (std::vector<std::uint32_t>{2, 3}));
  c.group_score = RouterGroupScore::kMax;
  EXPECT_EQ(Route(c, logits, nullptr, 1).experts, (std::vector<std::uint32_t>{0, 2}));
}

TEST(RouterByHandTest, RejectsInvalidParameters) {
  const TestBackend backend(1);
  const std::vector<float> logits(8, 0.0f);
  const auto status_of = [&](std::uint32_t experts, std::uint32_t top_k, std::uint32_t groups,
                             std::uint32_t kept, std::int64_t stride) {
    RouterCase c{"refused", experts, top_k, RouterScore::kSoftmaxAll};
    c.groups = groups;
    c.groups_kept = kept;
    c.group_score = RouterGroupScore::kTop2Sum;
    Routed out;
    RouterParams params = ParamsOf(c, logits, nullptr, 1, &out);
    params.logits_stride = stride;
    return Router(*backend, params);
  };
  EXPECT_TRUE(status_of(8, 4, 4, 2, 8).ok());
  for (const auto& status :
       {status_of(0, 1, 1, 1, 8), status_of(8, 0, 1, 1, 8), status_of(8, 9, 1, 1, 8),
        status_of(8, 2, 3, 1, 8), status_of(8, 2, 4, 5, 8), status_of(8, 5, 4, 2, 8),
        status_of(8, 2, 8, 4, 8), status_of(8, 2, 1, 1, 7)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

// The experts of three rows: (2 0) (2 3) (0 2).
TEST(ExpertRowsTest, SortsRowsByExpertStably) {
  const TestBackend backend(1);
  const std::vector<std::uint32_t> experts = {2, 0, 2, 3, 0, 2};
  const std::vector<float> weights = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  std::vector<std::uint32_t> offsets(6, 99);
  std::vector<std::uint32_t> rows(6, 99);
  std::vector<float> row_weights(6);
  SortByExpertParams params{experts.data(),     weights.data(), offsets.data(), rows.data(),
                            row_weights.data(), /*num_rows=*/3, /*top_k=*/2,    /*num_experts=*/5};
  ASSERT_TRUE(SortByExpert(*backend, params).ok());
  EXPECT_EQ(offsets, (std::vector<std::uint32_t>{0, 2, 2, 5, 6, 6}));
  EXPECT_EQ(rows, (std::vector<std::uint32_t>{0, 2, 0, 1, 2, 1}));
  EXPECT_EQ(row_weights, (std::vector<float>{0.2f, 0.5f, 0.1f, 0.3f, 0.6f, 0.4f}));
  params.num_experts = 3;
  const absl::Status beyond = SortByExpert(*backend, params);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(beyond.message().find("row 1"), std::string::npos) << beyond;
}

TEST(ExpertRowsTest, GathersRowsAndReturnsThemWeighted) {
  for (const int threads : {1, 3}) {
    const TestBackend backend(threads);
    constexpr std::uint32_t kRows = 200;  // large enough for several threads
    constexpr std::uint32_t kColumns = 1030;
    const auto x = RandomFloats(std::size_t{kRows} * kColumns, 21);
    std::vector<std::uint32_t> rows;
    for (std::uint32_t m = 1; m < kRows; m += 2) rows.push_back(m);
    const auto count = static_cast<std::uint32_t>(rows.size());
    GuardedRows gathered(count, kColumns);
    ASSERT_TRUE(GatherRows(*backend, {.x = x.data(),
                                      .rows = rows.data(),
                                      .y = gathered.data(),
                                      .x_stride = kColumns,
                                      .y_stride = gathered.stride(),
                                      .num_rows = count,
                                      .columns = kColumns})
                    .ok());
    EXPECT_TRUE(gathered.GuardsIntact());
    const auto weights = RandomFloats(count, 22);
    std::vector<float> y(x.size(), 1.0f);
    ASSERT_TRUE(AddWeightedRows(*backend, {.x = gathered.data(),
                                           .rows = rows.data(),
                                           .weights = weights.data(),
                                           .y = y.data(),
                                           .x_stride = gathered.stride(),
                                           .y_stride = kColumns,
                                           .num_rows = count,
                                           .columns = kColumns})
                    .ok());
    for (std::uint32_t m = 0; m < kRows; ++m) {
      for (std::uint32_t i = 0; i < kColumns; ++i) {
        const std::size_t at = std::size_t{m} * kColumns + i;
        const float product = m % 2 == 0 ? 0.0f : weights[m / 2] * x[at];
        ASSERT_EQ(y[at], 1.0f + product) << m << " " << i;
      }
    }
  }
}

TEST(ExpertRowsTest, WeighsGatheredRowsAndReturnsThemAsTheyAre) {
  const TestBackend backend(2);
  constexpr std::uint32_t kColumns = 37;
  const auto x = RandomFloats(std::size_t{5} * kColumns, 23);
  const std::uint32_t rows[] = {1, 4};
  const float weights[] = {0.3f, -2.0f};
  GuardedRows gathered(2, kColumns);
  ASSERT_TRUE(GatherRows(*backend, {.x = x.data(),
                                    .rows = rows,
                                    .y = gathered.data(),
                                    .x_stride = kColumns,
                                    .y_stride = gathered.stride(),
                                    .num_rows = 2,
                                    .columns = kColumns,
                                    .weights = weights})
                  .ok());
  EXPECT_TRUE(gathered.GuardsIntact());
  std::vector<float> y(x.size(), 1.0f);
  ASSERT_TRUE(AddWeightedRows(*backend, {.x = gathered.data(),
                                         .rows = rows,
                                         .weights = nullptr,
                                         .y = y.data(),
                                         .x_stride = gathered.stride(),
                                         .y_stride = kColumns,
                                         .num_rows = 2,
                                         .columns = kColumns})
                  .ok());
  for (std::uint32_t i = 0; i < kColumns; ++i) {
    EXPECT_EQ(y[kColumns + i], 1.0f + 0.3f * x[kColumns + i]);
    EXPECT_EQ(y[4 * kColumns + i], 1.0f - 2.0f * x[4 * kColumns + i]);
    EXPECT_EQ(y[i], 1.0f);
  }
}

TEST(ExpertRowsTest, RejectsStridesShorterThanARow) {
  const TestBackend backend(1);
  float value = 0;
  const std::uint32_t row = 0;
  EXPECT_EQ(GatherRows(*backend, {.x = &value,
                                  .rows = &row,
                                  .y = &value,
                                  .x_stride = 1,
                                  .y_stride = 2,
                                  .num_rows = 1,
                                  .columns = 2})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AddWeightedRows(*backend, {.x = &value,
                                       .rows = &row,
                                       .weights = &value,
                                       .y = &value,
                                       .x_stride = 2,
                                       .y_stride = 1,
                                       .num_rows = 1,
                                       .columns = 2})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::kernels
