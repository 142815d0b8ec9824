// Element-wise ops over shapes and thread counts, each compared with its plain reference and with
// double precision.

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sampling/sampling_passes.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

struct RowCase {
  std::uint32_t rows;
  std::uint32_t columns;
  int threads;
};

class RowOpsTest : public testing::TestWithParam<RowCase> {};

std::vector<double> ExactNorm(const std::vector<float>& x, const float* residual,
                              const float* weight, const RowCase& c, double offset) {
  std::vector<double> y;
  for (std::uint32_t m = 0; m < c.rows; ++m) {
    double sum = 0;
    for (std::uint32_t i = 0; i < c.columns; ++i) {
      const double s = double{x[m * c.columns + i]} + (residual ? residual[m * c.columns + i] : 0);
      y.push_back(s);
      sum += s * s;
    }
    const double inverse = 1 / std::sqrt(sum / c.columns + 1e-5);
    for (std::uint32_t i = 0; i < c.columns; ++i) {
      y[m * c.columns + i] *= inverse * ((weight ? weight[i] : 1.0) + offset);
    }
  }
  return y;
}

TEST_P(RowOpsTest, RmsNormEqualsReferenceAndDouble) {
  const RowCase c = GetParam();
  const TestBackend backend(c.threads);
  const auto x = RandomFloats(std::size_t{c.rows} * c.columns, 1);
  const auto added = RandomFloats(std::size_t{c.rows} * c.columns, 2);
  const auto weight = RandomFloats(c.columns, 3);
  for (const bool with_residual : {false, true}) {
    for (const float offset : {0.0f, 1.0f}) {
      const auto exact =
          ExactNorm(x, with_residual ? added.data() : nullptr, weight.data(), c, offset);
      const auto run = [&](bool fast) {
        GuardedRows y(c.rows, c.columns);
        auto residual = added;
        const RmsNormParams params{.x = x.data(),
                                   .weight = weight.data(),
                                   .residual = with_residual ? residual.data() : nullptr,
                                   .y = y.data(),
                                   .x_stride = c.columns,
                                   .residual_stride = c.columns,
                                   .y_stride = y.stride(),
                                   .num_rows = c.rows,
                                   .hidden = c.columns,
                                   .epsilon = 1e-5f,
                                   .weight_offset = offset};
        if (fast) {
          EXPECT_TRUE(RmsNorm(*backend, params).ok());
        } else {
          internal::RmsNormCpu(params, 0, c.rows);
        }
        EXPECT_TRUE(y.GuardsIntact());
        for (std::size_t i = 0; i < x.size(); ++i) {
          EXPECT_EQ(residual[i], with_residual ? x[i] + added[i] : added[i]);
        }
        return y.Packed();
      };
      EXPECT_LE(RelativeError(run(false), exact), 2e-6);
      for (const std::string& isa : AvailableIsas()) {
        const ScopedIsa scoped(isa);
        EXPECT_LE(RelativeError(run(true), exact), 1e-6) << isa;
      }
    }
  }
}

TEST_P(RowOpsTest, GatedProductEqualsReferenceAndDouble) {
  const RowCase c = GetParam();
  const TestBackend backend(c.threads);
  auto gate = RandomFloats(std::size_t{c.rows} * c.columns, 4, 4.0f);
  if (gate.size() > 1) gate[0] = -200.0f;  // its exponential overflows
  const auto up = RandomFloats(std::size_t{c.rows} * c.columns, 5);
  std::vector<double> exact;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    exact.push_back(double{gate[i]} / (1 + std::exp(-double{gate[i]})) * up[i]);
  }
  const auto run = [&](bool fast) {
    GuardedRows y(c.rows, c.columns);
    const GatedProductParams params{gate.data(), up.data(),  y.data(), c.columns,
                                    c.columns,   y.stride(), c.rows,   c.columns};
    if (fast) {
      EXPECT_TRUE(GatedProduct(*backend, params).ok());
    } else {
      internal::GatedProductCpu(params, 0, c.rows);
    }
    EXPECT_TRUE(y.GuardsIntact());
    return y.Packed();
  };
  EXPECT_LE(RelativeError(run(false), exact), 1e-6);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    EXPECT_LE(RelativeError(run(true), exact), 1e-6) << isa;
  }
}

TEST_P(RowOpsTest, EmbeddingGathersExactly) {
  const RowCase c = GetParam();
  const TestBackend backend(c.threads);
  constexpr std::uint32_t kVocab = 37;
  const auto table = RandomFloats(std::size_t{kVocab} * c.columns, 6);
  std::vector<std::int32_t> tokens;
  for (std::uint32_t m = 0; m < c.rows; ++m)
    tokens.push_back(static_cast<std::int32_t>(m * 7 % kVocab));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    auto bytes = Encode(table, dtype);
    bytes.insert(bytes.begin(), std::byte{0});  // a mapped file guarantees no alignment
    const auto rounded = Rounded(table, dtype);
    GuardedRows y(c.rows, c.columns);
    ASSERT_TRUE(Embedding(*backend, {.table = bytes.data() + 1,
                                     .tokens = tokens.data(),
                                     .y = y.data(),
                                     .y_stride = y.stride(),
                                     .dtype = dtype,
                                     .vocab = kVocab,
                                     .hidden = c.columns,
                                     .num_rows = c.rows,
                                     .scale = 2.5f})
                    .ok());
    EXPECT_TRUE(y.GuardsIntact());
    for (std::uint32_t m = 0; m < c.rows; ++m) {
      for (std::uint32_t i = 0; i < c.columns; ++i) {
        EXPECT_EQ(y.row(m)[i],
                  rounded[static_cast<std::uint32_t>(tokens[m]) * c.columns + i] * 2.5f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowOpsTest,
                         testing::Values(RowCase{1, 1, 1}, RowCase{3, 15, 2}, RowCase{2, 16, 1},
                                         RowCase{5, 17, 3}, RowCase{7, 64, 2}, RowCase{4, 255, 7},
                                         RowCase{64, 768, 3}, RowCase{9, 4099, 2}));

// Compares a single row bitwise with the same row in a batch, over threads and widths.
TEST(RowOpsInvarianceTest, BitsDoNotDependOnRowsThreadsOrWidth) {
  constexpr std::uint32_t kRows = 64, kColumns = 1000;
  const auto x = RandomFloats(std::size_t{kRows} * kColumns, 7, 3.0f);
  const auto up = RandomFloats(std::size_t{kRows} * kColumns, 8);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    std::vector<float> norm[4], silu[4];
    const int threads[4] = {1, 2, 3, 7};
    for (int i = 0; i < 4; ++i) {
      const TestBackend backend(threads[i]);
      norm[i].resize(x.size());
      silu[i].resize(x.size());
      // Uses 1, 7 and 64 rows per call.
      const std::uint32_t step = i == 0 ? 1 : i == 1 ? 7 : 64;
      for (std::uint32_t m = 0; m < kRows; m += step) {
        const std::uint32_t rows = std::min(step, kRows - m);
        const std::size_t at = std::size_t{m} * kColumns;
        ASSERT_TRUE(RmsNorm(*backend, {.x = x.data() + at,
                                       .y = norm[i].data() + at,
                                       .x_stride = kColumns,
                                       .y_stride = kColumns,
                                       .num_rows = rows,
                                       .hidden = kColumns,
                                       .epsilon = 1e-6f})
                        .ok());
        ASSERT_TRUE(GatedProduct(*backend, {x.data() + at, up.data() + at, silu[i].data() + at,
                                            kColumns, kColumns, kColumns, rows, kColumns})
                        .ok());
      }
      EXPECT_EQ(std::memcmp(norm[0].data(), norm[i].data(), x.size() * 4), 0) << isa << i;
      EXPECT_EQ(std::memcmp(silu[0].data(), silu[i].data(), x.size() * 4), 0) << isa << i;
    }
  }
}

TEST(ExpTest, IsWithinTwoUnitsAndKeepsSpecialValues) {
  std::vector<float> x;
  for (float v = -86.0f; v <= 88.7f; v += 0.0037f) x.push_back(v);
  std::vector<float> w(x.size());
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    internal::ExpMinus(x.data(), x.size(), 0.0f, w.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(double{x[i]});
      ASSERT_LE(std::abs(double{w[i]} - exact), 2.0 * exact * 0x1p-23) << isa << " x " << x[i];
    }
    const float special[] = {0.0f, -86.1f, -std::numeric_limits<float>::infinity(), 89.0f,
                             std::numeric_limits<float>::quiet_NaN()};
    float y[5];
    internal::ExpMinus(special, 5, 0.0f, y);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(y[4]));
  }
}

struct RopeCase {
  RopeStyle style;
  std::uint32_t head_size;
  std::uint32_t rotary_size;
  std::uint32_t rotary_first;
  int threads;
};

// Rotates in double, times 1.25. The contract defines the angle as f32, so only its functions are
// computed in double.
std::vector<double> ExactRope(const std::vector<float>& x, std::span<const std::int32_t> positions,
                              const std::vector<float>& inv_freq, std::uint32_t heads,
                              const RopeCase& c) {
  std::vector<double> exact(x.begin(), x.end());
  const std::uint32_t pairs = c.rotary_size / 2;
  const bool half = c.style == RopeStyle::kHalf;
  for (std::size_t m = 0; m < positions.size(); ++m) {
    for (std::uint32_t h = 0; h < heads; ++h) {
      const std::size_t head = (m * heads + h) * c.head_size + c.rotary_first;
      for (std::uint32_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<float>(positions[m]) * inv_freq[i];
        const std::size_t first = head + (half ? i : 2 * i);
        const std::size_t second = first + (half ? pairs : 1);
        exact[first] = (x[first] * std::cos(angle) - x[second] * std::sin(angle)) * 1.25;
        exact[second] = (x[second] * std::cos(angle) + x[first] * std::sin(angle)) * 1.25;
      }
    }
  }
  return exact;
}

class RopeTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeTest, RotatesPairsAndKeepsTheRest) {
  const RopeCase c = GetParam();
  constexpr std::uint32_t kRows = 5, kHeads = 3;
  const TestBackend backend(c.threads);
  const std::uint32_t pairs = c.rotary_size / 2;
  std::vector<float> inv_freq;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    inv_freq.push_back(
        std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.rotary_size)));
  }
  const std::int32_t positions[kRows] = {0, 1, 17, 511, 100000};
  std::vector<float> cosines(kRows * pairs), sines(kRows * pairs);
  ASSERT_TRUE(RopeAngles(*backend, {positions, inv_freq.data(), cosines.data(), sines.data(), kRows,
                                    pairs, 1.25f})
                  .ok());
  const auto x = RandomFloats(std::size_t{kRows} * kHeads * c.head_size, 9);
  GuardedRows y(kRows, kHeads * c.head_size);
  for (std::uint32_t m = 0; m < kRows; ++m) {
    std::copy_n(x.begin() + m * kHeads * c.head_size, kHeads * c.head_size, y.row(m).begin());
  }
  ASSERT_TRUE(Rope(*backend, {.x = y.data(),
                              .cosines = cosines.data(),
                              .sines = sines.data(),
                              .x_stride = y.stride(),
                              .num_rows = kRows,
                              .num_heads = kHeads,
                              .head_size = c.head_size,
                              .rotary_size = c.rotary_size,
                              .rotary_first = c.rotary_first,
                              .style = c.style})
                  .ok());
  EXPECT_TRUE(y.GuardsIntact());
  const auto exact = ExactRope(x, positions, inv_freq, kHeads, c);
  EXPECT_LE(RelativeError(y.Packed(), exact), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Styles, RopeTest,
                         testing::Values(RopeCase{RopeStyle::kHalf, 64, 64, 0, 1},
                                         RopeCase{RopeStyle::kInterleaved, 64, 64, 0, 2},
                                         RopeCase{RopeStyle::kHalf, 80, 60, 0, 3},
                                         RopeCase{RopeStyle::kInterleaved, 20, 6, 10, 1},
                                         RopeCase{RopeStyle::kHalf, 6, 2, 4, 7}));

TEST(RowOpsErrorTest, NamesWhatIsWrong) {
  const TestBackend backend(1);
  float x[16] = {};
  const std::int32_t tokens[1] = {5};
  EXPECT_THAT(Embedding(*backend, {.table = x,
                                   .tokens = tokens,
                                   .y = x,
                                   .y_stride = 4,
                                   .dtype = DType::kF32,
                                   .vocab = 4,
                                   .hidden = 4,
                                   .num_rows = 1})
                  .message(),
              testing::HasSubstr("token 5 in row 0 is outside the vocabulary of 4"));
  EXPECT_FALSE(Embedding(*backend, {.table = x,
                                    .tokens = tokens,
                                    .y = x,
                                    .y_stride = 4,
                                    .dtype = DType::kI8,
                                    .vocab = 40,
                                    .hidden = 4,
                                    .num_rows = 1})
                   .ok());
  EXPECT_FALSE(RmsNorm(*backend, {.x = x,
                                  .y = x,
                                  .x_stride = 4,
                                  .y_stride = 3,
                                  .num_rows = 1,
                                  .hidden = 4,
                                  .epsilon = 1e-5f})
                   .ok());
  EXPECT_FALSE(RmsNorm(*backend, {.x = x,
                                  .y = x,
                                  .x_stride = 4,
                                  .y_stride = 4,
                                  .num_rows = 1,
                                  .hidden = 0,
                                  .epsilon = 1e-5f})
                   .ok());
  EXPECT_FALSE(GatedProduct(*backend, {x, x, x, 4, 3, 4, 1, 4}).ok());
}

TEST(RowOpsErrorTest, RejectsBadRotations) {
  const TestBackend backend(1);
  float x[16] = {};
  EXPECT_FALSE(Rope(*backend, {.x = x,
                               .cosines = x,
                               .sines = x,
                               .x_stride = 16,
                               .num_rows = 1,
                               .num_heads = 1,
                               .head_size = 8,
                               .rotary_size = 3})
                   .ok());
  EXPECT_FALSE(Rope(*backend, {.x = x,
                               .cosines = x,
                               .sines = x,
                               .x_stride = 16,
                               .num_rows = 1,
                               .num_heads = 1,
                               .head_size = 8,
                               .rotary_size = 6,
                               .rotary_first = 4})
                   .ok());
  const std::int32_t negative[1] = {-1};
  EXPECT_FALSE(RopeAngles(*backend, {negative, x, x, x, 1, 2}).ok());
}

}  // namespace
}  // namespace quire::kernels
