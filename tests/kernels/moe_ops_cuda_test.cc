// The ops around a mixture's experts on the emulated GPU: the router against the plain one of the
// CPU, the way of rows to their experts and back against its definition.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/router.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

struct RouterCase {
  std::uint32_t experts;
  std::uint32_t top_k;
  RouterScore score;
  bool bias;
  std::uint32_t groups = 1;
  std::uint32_t groups_kept = 1;
  RouterGroupScore group_score = RouterGroupScore::kMax;
  bool renormalise = false;
  float scale = 1;
};

constexpr RouterCase kCases[] = {
    {8, 2, RouterScore::kSoftmaxAll, false, 1, 1, RouterGroupScore::kMax, true},
    {128, 8, RouterScore::kSoftmaxAll, false},
    {32, 4, RouterScore::kSoftmaxChosen, false},
    {16, 1, RouterScore::kSigmoidChosen, false},
    {64, 6, RouterScore::kSoftmaxAll, false, 8, 3, RouterGroupScore::kMax, false, 16},
    {256, 8, RouterScore::kSigmoid, true, 8, 4, RouterGroupScore::kTop2Sum, true, 2.5f},
    {5, 5, RouterScore::kSigmoid, true}};

std::string Describe(const RouterCase& c) {
  return absl::StrCat(c.top_k, " of ", c.experts, ", score ", static_cast<int>(c.score),
                      ", groups ", c.groups);
}

RouterParams ParamsOf(const RouterCase& c, std::uint32_t rows, std::uint32_t stride) {
  RouterParams params{};
  params.logits_stride = stride;
  params.num_rows = rows;
  params.num_experts = c.experts;
  params.top_k = c.top_k;
  params.score = c.score;
  params.groups = c.groups;
  params.groups_kept = c.groups_kept;
  params.group_score = c.group_score;
  params.renormalise = c.renormalise;
  params.renorm_eps = c.renormalise ? 1e-20f : 0;
  params.weight_scale = c.scale;
  return params;
}

TEST(RouterCudaTest, ChoosesAndWeighsAsTheCpu) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 9;
  for (const RouterCase& c : kCases) {
    SCOPED_TRACE(Describe(c));
    const std::uint32_t stride = c.experts + 3;
    std::vector<float> logits = RandomFloats(kRows * stride, c.experts, 4.0f);
    // Ties go to the lower number: one row of equal logits, of either sign of zero.
    for (std::uint32_t e = 0; e < c.experts; ++e) logits[stride + e] = e % 2 == 0 ? -0.0f : 0.0f;
    const auto bias = RandomFloats(c.experts, 5, 0.3f);
    std::vector<std::uint32_t> experts(kRows * c.top_k);
    std::vector<float> weights(kRows * c.top_k);
    RouterParams params = ParamsOf(c, kRows, stride);
    params.logits = logits.data();
    params.choice_bias = c.bias ? bias.data() : nullptr;
    params.experts = experts.data();
    params.weights = weights.data();
    std::vector<std::byte> scratch((2 * c.experts + c.groups) * sizeof(float) + c.experts);
    internal::RouterCpu(params, 0, kRows, scratch.data());

    const DeviceArray<float> device_logits(cuda, logits);
    const DeviceArray<float> device_bias(cuda, bias);
    const DeviceArray<std::uint32_t> device_experts(cuda, experts.size());
    const DeviceArray<float> device_weights(cuda, weights.size());
    params.logits = device_logits.data();
    params.choice_bias = c.bias ? device_bias.data() : nullptr;
    params.experts = device_experts.data();
    params.weights = device_weights.data();
    ASSERT_TRUE(Router(*cuda, params).ok());
    EXPECT_EQ(device_experts.Get(), experts);
    const std::vector<float> got = device_weights.Get();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_NEAR(got[i], weights[i], 2e-6 * std::abs(weights[i])) << i;
    }
  }
}

TEST(RouterCudaTest, NotANumberNeverMakesAnExpertAppearTwice) {
  const EmulatedBackend cuda;
  for (const RouterCase& c : kCases) {
    SCOPED_TRACE(Describe(c));
    std::vector<float> logits = RandomFloats(2 * c.experts, 3);
    logits[1] = std::numeric_limits<float>::quiet_NaN();
    std::fill(logits.begin() + c.experts, logits.end(), std::numeric_limits<float>::quiet_NaN());
    const DeviceArray<float> device_logits(cuda, logits);
    const DeviceArray<std::uint32_t> experts(cuda, std::size_t{2} * c.top_k);
    const DeviceArray<float> weights(cuda, std::size_t{2} * c.top_k);
    RouterParams params = ParamsOf(c, 2, c.experts);
    params.logits = device_logits.data();
    params.experts = experts.data();
    params.weights = weights.data();
    ASSERT_TRUE(Router(*cuda, params).ok());
    std::vector<std::uint32_t> got = experts.Get();
    for (std::uint32_t m = 0; m < 2; ++m) {
      const auto begin = got.begin() + m * c.top_k;
      std::sort(begin, begin + c.top_k);
      EXPECT_EQ(std::adjacent_find(begin, begin + c.top_k), begin + c.top_k);
      EXPECT_LT(begin[c.top_k - 1], c.experts);
    }
  }
}

TEST(RouterCudaTest, MoreExpertsThanSharedMemoryHoldsAreRefused) {
  const EmulatedBackend cuda;
  const RouterCase large{4096, 2, RouterScore::kSoftmaxAll, false};
  EXPECT_TRUE(absl::IsInvalidArgument(Router(*cuda, ParamsOf(large, 1, 4096))));
}

TEST(ExpertRowsCudaTest, RowsAreSortedByExpertAscending) {
  const EmulatedBackend cuda;
  const TestBackend cpu(1);
  for (const auto& [rows, top_k, num_experts] :
       {std::tuple{1u, 1u, 1u}, {3u, 2u, 5u}, {70u, 4u, 32u}, {33u, 8u, 9u}}) {
    std::vector<std::uint32_t> experts;
    for (std::uint32_t m = 0; m < rows; ++m) {
      for (std::uint32_t k = 0; k < top_k; ++k)
        experts.push_back((m * 7 + k * 3 % 8) % num_experts);
    }
    const auto weights = RandomFloats(experts.size(), 2);
    std::vector<std::uint32_t> offsets(num_experts + 1);
    std::vector<std::uint32_t> sorted(experts.size());
    std::vector<float> sorted_weights(experts.size());
    ASSERT_TRUE(SortByExpert(*cpu, {experts.data(), weights.data(), offsets.data(), sorted.data(),
                                    sorted_weights.data(), rows, top_k, num_experts})
                    .ok());
    const DeviceArray<std::uint32_t> device_experts(cuda, experts);
    const DeviceArray<float> device_weights(cuda, weights);
    const DeviceArray<std::uint32_t> device_offsets(cuda, offsets.size());
    const DeviceArray<std::uint32_t> device_rows(cuda, experts.size());
    const DeviceArray<float> row_weights(cuda, experts.size());
    ASSERT_TRUE(
        SortByExpert(*cuda, {device_experts.data(), device_weights.data(), device_offsets.data(),
                             device_rows.data(), row_weights.data(), rows, top_k, num_experts})
            .ok());
    EXPECT_EQ(device_offsets.Get(), offsets);
    EXPECT_EQ(device_rows.Get(), sorted);
    EXPECT_EQ(row_weights.Get(), sorted_weights);
  }
}

TEST(ExpertRowsCudaTest, RowsComeBackWeighted) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kColumns = 300, kStride = 301;
  const auto x = RandomFloats(2 * kColumns, 7);
  const auto y = RandomFloats(4 * kStride, 8);
  const std::vector<std::uint32_t> rows = {2, 0};
  const std::vector<float> weights = {0.3f, -1.7f};
  const DeviceArray<float> device_x(cuda, x);
  const DeviceArray<float> device_weights(cuda, weights);
  const DeviceArray<std::uint32_t> device_rows(cuda, rows);
  for (const bool all : {false, true}) {
    const DeviceArray<float> device_y(cuda, y);
    ASSERT_TRUE(AddWeightedRows(
                    *cuda, {device_x.data(), all ? nullptr : device_rows.data(),
                            device_weights.data(), device_y.data(), kColumns, kStride, 2, kColumns})
                    .ok());
    std::vector<float> want = y;
    for (std::uint32_t m = 0; m < 2; ++m) {
      for (std::uint32_t i = 0; i < kColumns; ++i) {
        const volatile float product = weights[m] * x[m * kColumns + i];
        want[(all ? m : rows[m]) * kStride + i] += product;
      }
    }
    EXPECT_EQ(device_y.Get(), want);
  }
}

// A row's results lie at its places in any order of its choices, and add up in order of places.
TEST(ExpertRowsCudaTest, ChosenRowsAddUpAsExpertAfterExpert) {
  const EmulatedBackend cuda;
  const TestBackend cpu(1);
  constexpr std::uint32_t kRows = 33, kTopK = 4, kExperts = 9, kColumns = 300, kStride = 301;
  std::vector<std::uint32_t> experts;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t k = 0; k < kTopK; ++k) experts.push_back((m * 5 + k * 7) % kExperts);
  }
  const auto weights = RandomFloats(experts.size(), 2);
  const auto x = RandomFloats(experts.size() * kColumns, 3);
  const DeviceArray<std::uint32_t> chosen(cuda, experts);
  const DeviceArray<float> device_weights(cuda, weights), device_x(cuda, x);
  const DeviceArray<std::uint32_t> offsets(cuda, kExperts + 1), rows(cuda, experts.size());
  const DeviceArray<std::uint32_t> places(cuda, experts.size());
  const DeviceArray<float> row_weights(cuda, experts.size());
  const DeviceArray<float> y(cuda, std::size_t{kRows} * kStride);
  ASSERT_TRUE(
      SortByExpert(*cuda, {chosen.data(), device_weights.data(), offsets.data(), rows.data(),
                           row_weights.data(), kRows, kTopK, kExperts, places.data()})
          .ok());
  ASSERT_TRUE(SumChosenRows(*cuda, {device_x.data(), places.data(), device_weights.data(), y.data(),
                                    kColumns, kStride, kRows, kTopK, kColumns})
                  .ok());
  const auto sorted = rows.Get();
  const auto sorted_weights = row_weights.Get();
  std::vector<float> want(std::size_t{kRows} * kStride);
  for (std::size_t place = 0; place < sorted.size(); ++place) {
    for (std::uint32_t i = 0; i < kColumns; ++i) {
      const volatile float product = sorted_weights[place] * x[place * kColumns + i];
      want[sorted[place] * kStride + i] += product;
    }
  }
  const auto got = y.Get();
  std::vector<float> plain(got.size());
  ASSERT_TRUE(SumChosenRows(*cpu, {x.data(), places.Get().data(), weights.data(), plain.data(),
                                   kColumns, kStride, kRows, kTopK, kColumns})
                  .ok());
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t i = 0; i < kColumns; ++i) {
      ASSERT_EQ(got[m * kStride + i], want[m * kStride + i]) << m << ", " << i;
      ASSERT_EQ(plain[m * kStride + i], want[m * kStride + i]) << m << ", " << i;
    }
    EXPECT_TRUE(std::isnan(got[m * kStride + kColumns]));
  }
  // The same sums on top of what is there.
  const auto before = RandomFloats(got.size(), 4);
  const DeviceArray<float> stream(cuda, before);
  ASSERT_TRUE(SumChosenRows(*cuda, {device_x.data(), places.data(), device_weights.data(),
                                    stream.data(), kColumns, kStride, kRows, kTopK, kColumns, true})
                  .ok());
  plain = before;
  ASSERT_TRUE(SumChosenRows(*cpu, {x.data(), places.Get().data(), weights.data(), plain.data(),
                                   kColumns, kStride, kRows, kTopK, kColumns, true})
                  .ok());
  EXPECT_EQ(stream.Get(), plain);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i], i % kStride == kColumns ? before[i] : before[i] + want[i]) << i;
  }
}

TEST(ExpertRowsCudaTest, SigmoidEqualsDoublePrecision) {
  const EmulatedBackend cuda;
  const auto x = RandomFloats(700, 9, 12.0f);
  const DeviceArray<float> device(cuda, x);
  ASSERT_TRUE(SigmoidInPlace(*cuda, device.data(), 699).ok());
  const std::vector<float> got = device.Get();
  for (std::size_t i = 0; i < 699; ++i) {
    const double want = 1 / (1 + std::exp(-double{x[i]}));
    ASSERT_NEAR(got[i], want, 1e-6 * want);
  }
  EXPECT_EQ(got[699], x[699]);
}

}  // namespace
}  // namespace quire::kernels
