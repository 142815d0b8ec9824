// Per-head products on the emulated GPU, compared bitwise with Linear of each head and with double
// precision.

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/device_graph.h"
#include "kernels/linear/head_linear.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

struct HeadsCase {
  std::uint32_t heads;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t rows;
  bool one_launch;
};

void PrintTo(const HeadsCase& c, std::ostream* stream) {
  *stream << absl::StrCat(c.heads, " heads [", c.n, ", ", c.k, "], ", c.rows, " rows");
}

std::vector<BF16> Narrow(const std::vector<float>& x) {
  std::vector<BF16> out;
  for (const float v : x) out.push_back(BF16::FromFloat(v));
  return out;
}

// Heads with gaps between them, and rows with gaps after them.
struct Heads {
  explicit Heads(const HeadsCase& c)
      : x_head(c.k + 8),
        y_head(c.n + 6),
        x_stride(c.heads * x_head + 8),
        y_stride(c.heads * y_head + 10),
        x(Narrow(RandomFloats(std::size_t{c.rows} * static_cast<std::size_t>(x_stride), 7))) {
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      weights.push_back(Narrow(RandomFloats(std::size_t{c.n} * c.k, 50 + h)));
    }
  }
  std::int64_t x_head, y_head, x_stride, y_stride;
  std::vector<BF16> x;
  std::vector<std::vector<BF16>> weights;
};

class HeadLinearCudaTest : public testing::TestWithParam<HeadsCase> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, HeadLinearCudaTest,
    testing::Values(HeadsCase{3, 512, 128, 5, true}, HeadsCase{2, 128, 512, 64, true},
                    HeadsCase{128, 32, 32, 1, true}, HeadsCase{2, 80, 48, 9, true},
                    HeadsCase{2, 64, 32, 65, true}, HeadsCase{5, 512, 128, 200, true},
                    // two sub-ranges of K; one row of a second tile
                    HeadsCase{3, 128, 512, 129, true}, HeadsCase{128, 16, 16, 70, true},
                    HeadsCase{2, 208, 80, 128, true}, HeadsCase{2, 24, 16, 3, false},
                    HeadsCase{2, 24, 16, 70, false}));

TEST_P(HeadLinearCudaTest, EqualsLinearBitwiseAndDoublePrecision) {
  const HeadsCase& c = GetParam();
  const EmulatedBackend cuda(c.k);
  const Heads heads(c);
  std::vector<PackedLinear> packed;
  for (const std::vector<BF16>& w : heads.weights) {
    const WeightRows rows{w.data(), c.n};
    auto made = PackLinearWeights(*cuda, {&rows, 1}, DType::kBF16, c.k, {DType::kBF16});
    ASSERT_TRUE(made.ok()) << made.status();
    packed.push_back(*std::move(made));
  }
  std::vector<const PackedLinear*> weights;
  for (const PackedLinear& w : packed) weights.push_back(&w);
  const std::size_t count = std::size_t{c.rows} * static_cast<std::size_t>(heads.y_stride);
  DeviceArray<BF16> x(cuda, heads.x), y(cuda, count), one_by_one(cuda, count);
  const std::uint64_t before = cuda_emulator::LaunchCount("head_linear");
  const absl::Status status = HeadLinear(*cuda, {.weights = weights,
                                                 .x = x.data(),
                                                 .y = y.data(),
                                                 .x_stride = heads.x_stride,
                                                 .y_stride = heads.y_stride,
                                                 .x_head_stride = heads.x_head,
                                                 .y_head_stride = heads.y_head,
                                                 .num_rows = c.rows});
  ASSERT_TRUE(status.ok()) << status;
  cuda.Wait();
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount("head_linear") - before, c.one_launch ? 1u : 0u);
  }
  for (std::uint32_t h = 0; h < c.heads; ++h) {
    ASSERT_TRUE(Linear(*cuda, {.x = ConstFloatPtr(x.data()) + h * heads.x_head,
                               .weight = &packed[h],
                               .y = FloatPtr(one_by_one.data()) + h * heads.y_head,
                               .x_stride = heads.x_stride,
                               .y_stride = heads.y_stride,
                               .num_rows = c.rows})
                    .ok());
  }
  const std::vector<BF16> got = y.Get();
  // The gaps between heads and rows keep the same poison in both.
  EXPECT_EQ(std::memcmp(got.data(), one_by_one.Get().data(), count * sizeof(BF16)), 0);
  for (std::uint32_t m = 0; m < c.rows; ++m) {
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      for (std::uint32_t n = 0; n < c.n; n += 7) {
        double want = 0, size = 0;
        for (std::uint32_t k = 0; k < c.k; ++k) {
          const auto at = static_cast<std::size_t>(m * heads.x_stride + h * heads.x_head + k);
          const double product =
              double{heads.x[at].ToFloat()} * heads.weights[h][std::size_t{n} * c.k + k].ToFloat();
          want += product;
          size += std::fabs(product);
        }
        const double value =
            got[static_cast<std::size_t>(m * heads.y_stride + h * heads.y_head + n)].ToFloat();
        ASSERT_NEAR(value, want, 1e-5 * size + 0x1p-8 * std::fabs(want))
            << m << " " << h << " " << n;
      }
    }
  }
}

// The grid has 1024 row tiles of 128 heads, twice as many as a grid may have blocks along y. The
// launch is captured and not run, so x and y are never accessed and need no memory.
TEST(HeadLinearTest, LaunchesOnceForTheLargestStep) {
  const EmulatedBackend cuda(1);
  constexpr std::uint32_t kHeads = kMaxHeadsPerLaunch;
  constexpr std::uint32_t kSide = 16;
  constexpr std::uint32_t kStride = kHeads * kSide;
  const std::vector<BF16> w(kSide * kSide, BF16::FromFloat(1));
  const WeightRows rows{w.data(), kSide};
  const auto packed = PackLinearWeights(*cuda, {&rows, 1}, DType::kBF16, kSide, {DType::kBF16});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const std::vector<const PackedLinear*> weights(kHeads, &*packed);
  const DeviceArray<BF16> x(cuda, kStride), y(cuda, kStride);
  const auto graph = DeviceGraph::Capture(cuda.stream(), [&] {
    return HeadLinear(*cuda, {.weights = weights,
                              .x = x.data(),
                              .y = y.data(),
                              .x_stride = kStride,
                              .y_stride = kStride,
                              .x_head_stride = kSide,
                              .y_head_stride = kSide,
                              .num_rows = 131072});
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->num_nodes(), 1);
}

// The kernel for few rows reads pairs. The tiled kernel and Linear read 16 bytes.
TEST(HeadLinearTest, RejectsManyUnalignedRows) {
  const EmulatedBackend cuda(1);
  constexpr std::uint32_t kColumns = 32;
  const std::vector<BF16> w(std::size_t{16} * kColumns, BF16::FromFloat(1));
  const WeightRows rows{w.data(), 16};
  const auto packed = PackLinearWeights(*cuda, {&rows, 1}, DType::kBF16, kColumns, {DType::kBF16});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const std::vector<const PackedLinear*> weights = {&*packed, &*packed};
  constexpr std::uint32_t kHead = kColumns + 2;
  constexpr std::uint32_t kStride = 2 * kHead + 4;
  DeviceArray<BF16> x(cuda, std::vector<BF16>(std::size_t{65} * kStride, BF16::FromFloat(1)));
  DeviceArray<BF16> y(cuda, std::size_t{65} * 32);
  const auto apply = [&](std::uint32_t num_rows) {
    return HeadLinear(*cuda, {.weights = weights,
                              .x = x.data(),
                              .y = y.data(),
                              .x_stride = kStride,
                              .y_stride = 32,
                              .x_head_stride = kHead,
                              .y_head_stride = 16,
                              .num_rows = num_rows});
  };
  EXPECT_TRUE(apply(kHeadLinearRows).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(apply(kHeadLinearRows + 1)));
  cuda.Wait();
  EXPECT_EQ(y.Get()[31].ToFloat(), 32.0f);
}

TEST(HeadLinearTest, RejectsShapesAndStridesThatDoNotFit) {
  const TestBackend cpu(1);
  const std::vector<float> w(64, 1.0f);
  const auto four = PackLinearWeight(*cpu, w.data(), DType::kF32, 4, 8);
  const auto eight = PackLinearWeight(*cpu, w.data(), DType::kF32, 8, 8);
  const std::vector<float> x(32, 1.0f);
  std::vector<float> y(32);
  std::vector<const PackedLinear*> weights = {&*four, &*four};
  const auto apply = [&](std::int64_t x_stride, std::int64_t y_head) {
    return HeadLinear(*cpu, {.weights = weights,
                             .x = x.data(),
                             .y = y.data(),
                             .x_stride = x_stride,
                             .y_stride = 16,
                             .x_head_stride = 8,
                             .y_head_stride = y_head,
                             .num_rows = 2});
  };
  EXPECT_TRUE(apply(16, 5).ok());
  EXPECT_EQ(y[5], 8.0f);
  EXPECT_EQ(y[16 + 5 + 3], 8.0f);
  EXPECT_TRUE(absl::IsInvalidArgument(apply(15, 5)));
  EXPECT_TRUE(absl::IsInvalidArgument(apply(16, 3)));
  EXPECT_TRUE(absl::IsInvalidArgument(apply(16, 13)));
  weights[1] = &*eight;
  EXPECT_TRUE(absl::IsInvalidArgument(apply(16, 8)));
  weights.assign(kMaxHeadsPerLaunch + 1, &*four);
  EXPECT_TRUE(absl::IsInvalidArgument(apply(16, 5)));
}

}  // namespace
}  // namespace quire::kernels
