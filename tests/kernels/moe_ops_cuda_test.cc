// Ops around the experts of a mixture of experts on the emulated GPU. The router is compared with
// the CPU's plain one, the permutation of rows to experts and back with its definition.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/route.h"
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
  bool renormalize = false;
  float scale = 1;
  bool expert_scale = false;
};

constexpr RouterCase kCases[] = {
    {8, 2, RouterScore::kSoftmaxAll, false, 1, 1, RouterGroupScore::kMax, true},
    {128, 8, RouterScore::kSoftmaxAll, false},
    {32, 4, RouterScore::kSoftmaxChosen, false},
    {16, 1, RouterScore::kSigmoidChosen, false},
    {64, 6, RouterScore::kSoftmaxAll, false, 8, 3, RouterGroupScore::kMax, false, 16},
    {256, 8, RouterScore::kSigmoid, true, 8, 4, RouterGroupScore::kTop2Sum, true, 2.5f},
    {5, 5, RouterScore::kSigmoid, true},
    {6, 2, RouterScore::kSoftmaxAll, false, 1, 1, RouterGroupScore::kMax, true, 1, true}};

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
  params.renormalize = c.renormalize;
  params.renorm_eps = c.renormalize ? 1e-20f : 0;
  params.weight_scale = c.scale;
  return params;
}

TEST(RouterCudaTest, ChoosesAndWeighsLikeTheCpu) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 9;
  for (const RouterCase& c : kCases) {
    SCOPED_TRACE(Describe(c));
    const std::uint32_t stride = c.experts + 3;
    std::vector<float> logits = RandomFloats(kRows * stride, c.experts, 4.0f);
    // Ties select the lower number: one row has equal logits, including zeros of either sign.
    for (std::uint32_t e = 0; e < c.experts; ++e) logits[stride + e] = e % 2 == 0 ? -0.0f : 0.0f;
    const auto bias = RandomFloats(c.experts, 5, 0.3f);
    const auto scales = RandomFloats(c.experts, 6);
    std::vector<std::uint32_t> experts(kRows * c.top_k);
    std::vector<float> weights(kRows * c.top_k);
    RouterParams params = ParamsOf(c, kRows, stride);
    params.logits = logits.data();
    params.choice_bias = c.bias ? bias.data() : nullptr;
    params.expert_scale = c.expert_scale ? scales.data() : nullptr;
    params.experts = experts.data();
    params.weights = weights.data();
    std::vector<std::byte> scratch((2 * c.experts + c.groups) * sizeof(float) + c.experts);
    internal::RouterCpu(params, 0, kRows, scratch.data());

    const DeviceArray<float> device_logits(cuda, logits);
    const DeviceArray<float> device_bias(cuda, bias);
    const DeviceArray<float> device_scales(cuda, scales);
    const DeviceArray<std::uint32_t> device_experts(cuda, experts.size());
    const DeviceArray<float> device_weights(cuda, weights.size());
    params.logits = device_logits.data();
    params.choice_bias = c.bias ? device_bias.data() : nullptr;
    params.expert_scale = c.expert_scale ? device_scales.data() : nullptr;
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

TEST(RouterCudaTest, NanNeverSelectsAnExpertTwice) {
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

TEST(RouterCudaTest, RejectsMoreExpertsThanFitSharedMemory) {
  const EmulatedBackend cuda;
  const RouterCase large{4096, 2, RouterScore::kSoftmaxAll, false};
  EXPECT_TRUE(absl::IsInvalidArgument(Router(*cuda, ParamsOf(large, 1, 4096))));
}

// The outputs of Route and its number of launches.
struct Routed {
  std::vector<float> logits;
  std::vector<std::uint32_t> experts;
  std::vector<float> weights;
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> rows;
  std::vector<float> row_weights;
  std::vector<std::uint32_t> places;
  std::uint64_t launches = 0;
};

// One bf16 matrix, rows in bf16, a bias on the logits, and the choices of `c`.
class Routing {
 public:
  Routing(const EmulatedBackend& cuda, const RouterCase& c, std::uint32_t k, std::uint32_t rows)
      : cuda_(cuda), case_(c), k_(k) {
    const auto weights = Encode(RandomFloats(std::size_t{c.experts} * k, 11, 0.4f), DType::kBF16);
    const WeightRows source{weights.data(), c.experts};
    matrix_ =
        *PackLinearWeights(*cuda, {&source, 1}, DType::kBF16, k, {.activations = DType::kBF16});
    std::vector<float> values = RandomFloats(std::size_t{rows} * k, 12);
    // Equal rows choose equally, and zero rows by the bias alone.
    if (rows > 2) std::copy_n(values.begin(), k, values.begin() + 2 * std::ptrdiff_t{k});
    if (rows > 5) std::fill_n(values.begin() + 5 * std::ptrdiff_t{k}, k, 0.0f);
    const auto bytes = Encode(values, DType::kBF16);
    std::vector<BF16> x(values.size());
    std::memcpy(x.data(), bytes.data(), bytes.size());
    x_.emplace(cuda, x);
    bias_.emplace(cuda, RandomFloats(c.experts, 13, 0.2f));
    choice_bias_.emplace(cuda, RandomFloats(c.experts, 14, 0.3f));
  }

  // Runs `count` rows from `first` on, by Route or by the three ops that it fuses.
  Routed Run(std::uint32_t first, std::uint32_t count, bool at_once) const {
    const std::size_t choices = std::size_t{count} * case_.top_k;
    const DeviceArray<float> logits(cuda_, std::size_t{count} * case_.experts);
    const DeviceArray<std::uint32_t> experts(cuda_, choices), offsets(cuda_, case_.experts + 1);
    const DeviceArray<std::uint32_t> rows(cuda_, choices), places(cuda_, choices);
    const DeviceArray<float> weights(cuda_, choices), row_weights(cuda_, choices);
    RouteParams params{.x = x_->data() + std::size_t{first} * k_,
                       .weight = &matrix_,
                       .bias = bias_->data(),
                       .logits = logits.data(),
                       .choice = ParamsOf(case_, count, case_.experts),
                       .offsets = offsets.data(),
                       .rows = rows.data(),
                       .row_weights = row_weights.data(),
                       .places = places.data(),
                       .x_stride = k_};
    params.choice.choice_bias = case_.bias ? choice_bias_->data() : nullptr;
    params.choice.experts = experts.data();
    params.choice.weights = weights.data();
    const std::uint64_t before = cuda_emulator::LaunchCount();
    EXPECT_TRUE((at_once ? Route(*cuda_, params) : OneByOne(params)).ok());
    cuda_.Wait();
    return {logits.Get(), experts.Get(),     weights.Get(), offsets.Get(),
            rows.Get(),   row_weights.Get(), places.Get(),  cuda_emulator::LaunchCount() - before};
  }

 private:
  absl::Status OneByOne(const RouteParams& params) const {
    RouterParams choice = params.choice;
    choice.logits = params.logits;
    QUIRE_RETURN_IF_ERROR(Linear(*cuda_, {.x = params.x,
                                          .weight = params.weight,
                                          .bias = params.bias,
                                          .y = params.logits,
                                          .x_stride = params.x_stride,
                                          .y_stride = choice.num_experts,
                                          .num_rows = choice.num_rows}));
    QUIRE_RETURN_IF_ERROR(Router(*cuda_, choice));
    return SortByExpert(
        *cuda_, {choice.experts, choice.weights, params.offsets, params.rows, params.row_weights,
                 choice.num_rows, choice.top_k, choice.num_experts, params.places});
  }

  const EmulatedBackend& cuda_;
  RouterCase case_;
  std::uint32_t k_;
  PackedLinear matrix_;
  std::optional<DeviceArray<BF16>> x_;
  std::optional<DeviceArray<float>> bias_;
  std::optional<DeviceArray<float>> choice_bias_;
};

void ExpectSameRoute(const Routed& got, const Routed& want) {
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.experts, want.experts);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_EQ(got.offsets, want.offsets);
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.row_weights, want.row_weights);
  EXPECT_EQ(got.places, want.places);
}

// K in one sub-range and in several, experts in one feature tile and in two.
TEST(RouteCudaTest, OneLaunchEqualsThreeBitwise) {
  for (const std::uint64_t seed : {1u, 7u}) {
    const EmulatedBackend cuda(seed);
    for (const RouterCase& c : kCases) {
      for (const std::uint32_t k : {72u, 1088u}) {
        SCOPED_TRACE(absl::StrCat(Describe(c), ", k ", k));
        const Routing routing(cuda, c, k, 17);
        for (const std::uint32_t rows : {1u, 7u, 16u, 17u}) {
          SCOPED_TRACE(rows);
          const Routed got = routing.Run(0, rows, /*at_once=*/true);
          ExpectSameRoute(got, routing.Run(0, rows, /*at_once=*/false));
          const std::uint64_t launches = rows <= 16 ? 1 : 3;
          EXPECT_EQ(got.launches, cuda_emulator::IsEmulated() ? launches : 0);
        }
      }
    }
  }
}

TEST(RouteCudaTest, RoutingIsBatchInvariant) {
  const EmulatedBackend cuda;
  const RouterCase& c = kCases[5];
  const Routing routing(cuda, c, 1088, 17);
  const Routed all = routing.Run(0, 16, true);
  const Routed more = routing.Run(0, 17, true);
  for (std::uint32_t row = 0; row < 16; ++row) {
    const Routed alone = routing.Run(row, 1, true);
    for (std::uint32_t i = 0; i < c.top_k; ++i) {
      const std::size_t at = std::size_t{row} * c.top_k + i;
      EXPECT_EQ(alone.experts[i], all.experts[at]);
      EXPECT_EQ(alone.weights[i], all.weights[at]);
      EXPECT_EQ(alone.experts[i], more.experts[at]);
      EXPECT_EQ(alone.weights[i], more.weights[at]);
    }
  }
}

// If a block has no room for all scores, the three-launch path is used.
TEST(RouteCudaTest, ManyExpertsTakeThreeLaunches) {
  const EmulatedBackend cuda;
  const RouterCase many{1500, 2, RouterScore::kSoftmaxAll, false};
  const Routing routing(cuda, many, 64, 3);
  const Routed got = routing.Run(0, 3, true);
  ExpectSameRoute(got, routing.Run(0, 3, false));
  EXPECT_EQ(got.launches, cuda_emulator::IsEmulated() ? 3u : 0u);
}

TEST(RouteCudaTest, RejectsWhatRouterRejects) {
  const EmulatedBackend cuda;
  RouterCase c = kCases[0];
  c.top_k = 9;
  const PackedLinear matrix;
  RouteParams params{};
  params.weight = &matrix;
  params.choice = ParamsOf(c, 1, c.experts);
  const std::uint64_t before = cuda_emulator::LaunchCount();
  EXPECT_TRUE(absl::IsInvalidArgument(Route(*cuda, params)));
  EXPECT_EQ(cuda_emulator::LaunchCount(), before);
}

TEST(RouteCudaTest, RejectsAMatrixOfMoreExpertsForAnyRowCount) {
  const EmulatedBackend cuda;
  const RouterCase& c = kCases[0];
  const std::uint32_t k = 64;
  const auto weights = Encode(RandomFloats(std::size_t{c.experts + 1} * k, 11), DType::kBF16);
  const WeightRows source{weights.data(), c.experts + 1};
  const PackedLinear matrix =
      *PackLinearWeights(*cuda, {&source, 1}, DType::kBF16, k, {.activations = DType::kBF16});
  for (const std::uint32_t rows : {1u, 17u}) {
    const DeviceArray<BF16> x(cuda, std::size_t{rows} * k);
    const DeviceArray<float> logits(cuda, std::size_t{rows} * c.experts);
    RouteParams params{};
    params.x = x.data();
    params.weight = &matrix;
    params.logits = logits.data();
    params.choice = ParamsOf(c, rows, c.experts);
    params.x_stride = k;
    const std::uint64_t before = cuda_emulator::LaunchCount();
    EXPECT_TRUE(absl::IsInvalidArgument(Route(*cuda, params))) << rows;
    EXPECT_EQ(cuda_emulator::LaunchCount(), before);
  }
}

TEST(ExpertRowsCudaTest, SortsRowsByAscendingExpert) {
  const EmulatedBackend cuda;
  const TestBackend cpu(1);
  for (const auto& [rows, top_k, num_experts] :
       {std::tuple{1u, 1u, 1u},
        {3u, 2u, 5u},
        {70u, 4u, 32u},
        {33u, 8u, 9u},
        // Blocks with several turns, the last one shorter; more experts than threads.
        {301u, 8u, 300u}}) {
    std::vector<std::uint32_t> experts;
    for (std::uint32_t m = 0; m < rows; ++m) {
      for (std::uint32_t k = 0; k < top_k; ++k)
        experts.push_back((m * 7 + k * 3 % 8) % num_experts);
    }
    const auto weights = RandomFloats(experts.size(), 2);
    std::vector<std::uint32_t> offsets(num_experts + 1);
    std::vector<std::uint32_t> sorted(experts.size());
    std::vector<float> sorted_weights(experts.size());
    std::vector<std::uint32_t> places(experts.size());
    ASSERT_TRUE(SortByExpert(*cpu, {experts.data(), weights.data(), offsets.data(), sorted.data(),
                                    sorted_weights.data(), rows, top_k, num_experts, places.data()})
                    .ok());
    const DeviceArray<std::uint32_t> device_experts(cuda, experts);
    const DeviceArray<float> device_weights(cuda, weights);
    const DeviceArray<std::uint32_t> device_offsets(cuda, offsets.size());
    const DeviceArray<std::uint32_t> device_rows(cuda, experts.size());
    const DeviceArray<float> row_weights(cuda, experts.size());
    const DeviceArray<std::uint32_t> device_places(cuda, experts.size());
    ASSERT_TRUE(SortByExpert(*cuda, {device_experts.data(), device_weights.data(),
                                     device_offsets.data(), device_rows.data(), row_weights.data(),
                                     rows, top_k, num_experts, device_places.data()})
                    .ok());
    EXPECT_EQ(device_offsets.Get(), offsets);
    EXPECT_EQ(device_rows.Get(), sorted);
    EXPECT_EQ(row_weights.Get(), sorted_weights);
    EXPECT_EQ(device_places.Get(), places);
  }
}

TEST(ExpertRowsCudaTest, ReturnsWeightedRows) {
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

// Rows with and without weights, in both types and in any order.
TEST(ExpertRowsCudaTest, GathersWeightedRows) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kColumns = 300, kStride = 301;
  const std::vector<float> x = RandomFloats(4 * kStride, 7);
  std::vector<BF16> narrow;
  for (const float value : x) narrow.push_back(BF16::FromFloat(value));
  const std::vector<std::uint32_t> rows = {2, 0, 2};
  const std::vector<float> weights = {0.3f, -1.7f, 1.0f};
  const DeviceArray<float> wide_x(cuda, x), device_weights(cuda, weights);
  const DeviceArray<BF16> narrow_x(cuda, narrow);
  const DeviceArray<std::uint32_t> device_rows(cuda, rows);
  for (const bool weighs : {false, true}) {
    for (const bool all : {false, true}) {
      const DeviceArray<float> y(cuda, std::size_t{3} * kColumns);
      const DeviceArray<BF16> narrow_y(cuda, std::size_t{3} * kColumns);
      GatherRowsParams params{.x = wide_x.data(),
                              .rows = all ? nullptr : device_rows.data(),
                              .y = y.data(),
                              .x_stride = kStride,
                              .y_stride = kColumns,
                              .num_rows = 3,
                              .columns = kColumns,
                              .weights = weighs ? device_weights.data() : nullptr};
      ASSERT_TRUE(GatherRows(*cuda, params).ok());
      params.x = narrow_x.data();
      params.y = narrow_y.data();
      ASSERT_TRUE(GatherRows(*cuda, params).ok());
      const std::vector<float> got = y.Get();
      const std::vector<BF16> narrow_got = narrow_y.Get();
      for (std::uint32_t i = 0; i < got.size(); ++i) {
        const std::size_t from = (all ? i / kColumns : rows[i / kColumns]) * kStride + i % kColumns;
        const float weight = weighs ? weights[i / kColumns] : 1.0f;
        ASSERT_EQ(got[i], weight * x[from]) << i;
        ASSERT_EQ(narrow_got[i].ToFloat(),
                  BF16::FromFloat(weight * narrow[from].ToFloat()).ToFloat())
            << i;
      }
      params.y = y.data();
      EXPECT_TRUE(absl::IsInvalidArgument(GatherRows(*cuda, params)));
    }
  }
}

// A row's results are at its positions in any order of its choices, and are summed in order of
// positions.
TEST(ExpertRowsCudaTest, SumsChosenRowsInExpertOrder) {
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
  // The same sums are added to existing values.
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

// Without weights the sums are those of weights of one.
TEST(ExpertRowsCudaTest, SumsChosenRowsWithoutWeights) {
  const EmulatedBackend cuda;
  const TestBackend cpu(1);
  constexpr std::uint32_t kRows = 3, kTopK = 2, kColumns = 300;
  const std::vector<std::uint32_t> places = {4, 1, 0, 5, 2, 3};
  const auto x = RandomFloats(places.size() * kColumns, 3);
  const std::vector<float> ones(places.size(), 1.0f);
  const DeviceArray<float> device_x(cuda, x), device_ones(cuda, ones);
  const DeviceArray<std::uint32_t> device_places(cuda, places);
  const DeviceArray<float> y(cuda, std::size_t{kRows} * kColumns);
  const auto params = [&](const float* weights, float* to) {
    return SumChosenRowsParams{
        device_x.data(), device_places.data(), weights, to, kColumns, kColumns, kRows, kTopK,
        kColumns};
  };
  ASSERT_TRUE(SumChosenRows(*cuda, params(device_ones.data(), y.data())).ok());
  const std::vector<float> want = y.Get();
  ASSERT_TRUE(SumChosenRows(*cuda, params(nullptr, y.data())).ok());
  EXPECT_EQ(y.Get(), want);
  std::vector<float> plain(want.size());
  ASSERT_TRUE(SumChosenRows(*cpu, {x.data(), places.data(), nullptr, plain.data(), kColumns,
                                   kColumns, kRows, kTopK, kColumns})
                  .ok());
  EXPECT_EQ(plain, want);
}

// A shared expert's result is added to the sum, and both to the existing values.
TEST(ExpertRowsCudaTest, AddsASharedResultToTheSum) {
  const EmulatedBackend cuda;
  const TestBackend cpu(1);
  constexpr std::uint32_t kRows = 3, kTopK = 2, kColumns = 300, kStride = 301;
  const std::vector<std::uint32_t> places = {4, 1, 0, 5, 2, 3};
  const auto weights = RandomFloats(kRows * kTopK, 2);
  const auto x = RandomFloats(kRows * kTopK * kColumns, 3);
  const auto before = RandomFloats(kRows * kStride, 4);
  const auto shared = RandomFloats(kRows * kStride, 5);
  const DeviceArray<std::uint32_t> device_places(cuda, places);
  const DeviceArray<float> device_weights(cuda, weights), device_x(cuda, x), addend(cuda, shared);
  DeviceArray<float> stream(cuda, before);
  ASSERT_TRUE(SumChosenRows(*cuda, {device_x.data(), device_places.data(), device_weights.data(),
                                    stream.data(), kColumns, kStride, kRows, kTopK, kColumns, true,
                                    addend.data()})
                  .ok());
  std::vector<float> plain = before;
  ASSERT_TRUE(SumChosenRows(*cpu, {x.data(), places.data(), weights.data(), plain.data(), kColumns,
                                   kStride, kRows, kTopK, kColumns, true, shared.data()})
                  .ok());
  const std::vector<float> got = stream.Get();
  EXPECT_EQ(got, plain);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t m = i / kStride, column = i % kStride;
    if (column == kColumns) {
      EXPECT_EQ(got[i], before[i]);
      continue;
    }
    float sum = 0;
    for (std::size_t place = 0; place < places.size(); ++place) {
      const auto choice = std::find(places.begin(), places.end(), place) - places.begin();
      if (static_cast<std::size_t>(choice) / kTopK != m) continue;
      const volatile float product =
          weights[static_cast<std::size_t>(choice)] * x[place * kColumns + column];
      sum += product;
    }
    const volatile float both = sum + shared[i];
    ASSERT_EQ(got[i], before[i] + both) << i;
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
