#include "kernels/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

struct LinearCase {
  DType dtype;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t rows;
  int threads;
};

class LinearParityTest : public testing::TestWithParam<LinearCase> {};

// Computes y in double from the rounded weights.
std::vector<double> Exact(const std::vector<float>& x, const std::vector<float>& w,
                          const float* bias, const float* residual, const LinearCase& c) {
  std::vector<double> y;
  for (std::uint32_t m = 0; m < c.rows; ++m) {
    for (std::uint32_t n = 0; n < c.n; ++n) {
      double sum = bias == nullptr ? 0 : bias[n];
      if (residual != nullptr) sum += residual[m * c.n + n];
      for (std::uint32_t k = 0; k < c.k; ++k) sum += double{x[m * c.k + k]} * w[n * c.k + k];
      y.push_back(sum);
    }
  }
  return y;
}

TEST_P(LinearParityTest, EqualsReferenceAndDoubleOnEveryInstructionSet) {
  const LinearCase c = GetParam();
  const TestBackend backend(c.threads);
  const auto w = RandomFloats(std::size_t{c.n} * c.k, 1, 0.05f);
  const auto x = RandomFloats(std::size_t{c.rows} * c.k, 2);
  const auto bias = RandomFloats(c.n, 3);
  const auto residual = RandomFloats(std::size_t{c.rows} * c.n, 4);
  const auto rounded = Rounded(w, c.dtype);
  const auto bytes = Encode(w, c.dtype);
  auto packed = PackLinearWeight(*backend, bytes.data(), c.dtype, c.n, c.k);
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (const bool extras : {false, true}) {
    const auto exact =
        Exact(x, rounded, extras ? bias.data() : nullptr, extras ? residual.data() : nullptr, c);
    const auto run = [&](bool fast) {
      GuardedRows y(c.rows, c.n);
      const LinearParams params{.x = x.data(),
                                .weight = &*packed,
                                .bias = extras ? bias.data() : nullptr,
                                .residual = extras ? residual.data() : nullptr,
                                .y = y.data(),
                                .x_stride = c.k,
                                .residual_stride = c.n,
                                .y_stride = y.stride(),
                                .num_rows = c.rows};
      if (fast) {
        EXPECT_TRUE(Linear(*backend, params).ok());
      } else {
        internal::LinearCpu(params);
      }
      EXPECT_TRUE(y.GuardsIntact());
      return y.Packed();
    };
    EXPECT_LE(RelativeError(run(false), exact), 2e-6);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      EXPECT_LE(RelativeError(run(true), exact), 1e-6) << isa;
    }
  }
}

std::vector<LinearCase> LinearCases() {
  std::vector<LinearCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [n, k] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
             {1, 1}, {16, 2}, {15, 33}, {17, 255}, {64, 256}, {80, 257}, {130, 600}}) {
      for (const std::uint32_t rows : {1u, 2u, 3u, 5u, 8u, 17u}) {
        cases.push_back({dtype, n, k, rows, rows % 2 == 0 ? 3 : 1});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearParityTest, testing::ValuesIn(LinearCases()),
                         [](const auto& info) {
                           const LinearCase& c = info.param;
                           return absl::StrCat(DTypeName(c.dtype), "_n", c.n, "_k", c.k, "_m",
                                               c.rows, "_t", c.threads);
                         });

// Compares one row's output for a fixed input in different batches.
TEST(LinearInvarianceTest, BitsDoNotDependOnRowsThreadsOrOrder) {
  constexpr std::uint32_t kN = 200, kK = 700, kRows = 64;
  const auto w = Encode(RandomFloats(std::size_t{kN} * kK, 5, 0.05f), DType::kBF16);
  const auto x = RandomFloats(std::size_t{kRows} * kK, 6);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    std::vector<std::vector<float>> alone(kRows);
    for (const int threads : {1, 2, 3, 7}) {
      const TestBackend backend(threads);
      const auto packed = PackLinearWeight(*backend, w.data(), DType::kBF16, kN, kK);
      ASSERT_TRUE(packed.ok());
      for (const std::uint32_t rows : {1u, 7u, 64u}) {
        std::vector<std::uint32_t> order(kRows);
        std::iota(order.begin(), order.end(), 0u);
        std::shuffle(order.begin(), order.end(), std::mt19937(rows));
        for (std::uint32_t first = 0; first + rows <= kRows; first += rows) {
          std::vector<float> in;
          for (std::uint32_t i = 0; i < rows; ++i) {
            in.insert(in.end(), x.begin() + order[first + i] * kK,
                      x.begin() + (order[first + i] + 1) * kK);
          }
          std::vector<float> out(std::size_t{rows} * kN);
          ASSERT_TRUE(Linear(*backend, {.x = in.data(),
                                        .weight = &*packed,
                                        .y = out.data(),
                                        .x_stride = kK,
                                        .y_stride = kN,
                                        .num_rows = rows})
                          .ok());
          for (std::uint32_t i = 0; i < rows; ++i) {
            std::vector<float> row(out.begin() + i * kN, out.begin() + (i + 1) * kN);
            auto& expected = alone[order[first + i]];
            if (expected.empty()) expected = row;
            ASSERT_EQ(std::memcmp(expected.data(), row.data(), kN * 4), 0)
                << isa << " threads " << threads << " rows " << rows;
          }
        }
      }
    }
  }
}

TEST(LinearInvarianceTest, FusedMultiplyAddWidthsGiveEqualBits) {
  const TestBackend backend(2);
  const auto isas = AvailableIsas();
  if (std::count(isas.begin(), isas.end(), "avx512") == 0) {
    GTEST_SKIP() << "needs a machine with AVX-512";
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto w = Encode(RandomFloats(100 * 300, 7, 0.05f), dtype);
    const auto x = RandomFloats(9 * 300, 8);
    const auto packed = PackLinearWeight(*backend, w.data(), dtype, 100, 300);
    std::vector<float> y[2];
    for (int i = 0; i < 2; ++i) {
      const ScopedIsa scoped(i == 0 ? "avx512" : "avx2");
      y[i].resize(9 * 100);
      ASSERT_TRUE(Linear(*backend, {.x = x.data(),
                                    .weight = &*packed,
                                    .y = y[i].data(),
                                    .x_stride = 300,
                                    .y_stride = 100,
                                    .num_rows = 9})
                      .ok());
    }
    EXPECT_EQ(std::memcmp(y[0].data(), y[1].data(), y[0].size() * 4), 0) << DTypeName(dtype);
  }
}

// With x = 1 and K = 1, y is the widened weight itself.
TEST(LinearWideningTest, EveryHalfPrecisionValueIsExact) {
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  const TestBackend backend(1);
  const float one = 1.0f;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto packed = PackLinearWeight(*backend, bits.data(), dtype, 65536, 1);
    ASSERT_TRUE(packed.ok());
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      std::vector<float> y(65536);
      ASSERT_TRUE(Linear(*backend, {.x = &one,
                                    .weight = &*packed,
                                    .y = y.data(),
                                    .x_stride = 1,
                                    .y_stride = 65536,
                                    .num_rows = 1})
                      .ok());
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const float expected =
            dtype == DType::kBF16 ? BF16{bits[i]}.ToFloat() : F16{bits[i]}.ToFloat();
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(y[i])) << isa << " bits " << i;
        } else {
          ASSERT_EQ(y[i], expected) << isa << " bits " << i;
        }
      }
    }
  }
}

TEST(LinearPackingTest, JoinsMatricesAndReadsMisalignedRows) {
  const TestBackend backend(2);
  const auto a = RandomFloats(5 * 9, 9);
  const auto b = RandomFloats(20 * 9, 10);
  auto a_bytes = Encode(a, DType::kBF16);
  a_bytes.insert(a_bytes.begin(), std::byte{0});
  const auto b_bytes = Encode(b, DType::kBF16);
  const WeightRows sources[] = {{a_bytes.data() + 1, 5}, {b_bytes.data(), 20}};
  const auto packed = PackLinearWeights(*backend, sources, DType::kBF16, 9);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->n(), 25u);
  const auto a_rounded = Rounded(a, DType::kBF16);
  const auto b_rounded = Rounded(b, DType::kBF16);
  for (std::uint32_t n = 0; n < 25; ++n) {
    for (std::uint32_t k = 0; k < 9; ++k) {
      EXPECT_EQ(packed->At(n, k), n < 5 ? a_rounded[n * 9 + k] : b_rounded[(n - 5) * 9 + k]);
    }
  }
}

TEST(LinearPackingTest, PackingRowByRowIsEqual) {
  const TestBackend backend(3);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const auto& [n, k] : {std::pair{37u, 33u}, {16u, 8u}, {1u, 1u}, {200u, 5u}}) {
      const auto bytes = Encode(RandomFloats(std::size_t{n} * k, 13), dtype);
      const std::size_t row_bytes = bytes.size() / n;
      const auto whole = PackLinearWeight(*backend, bytes.data(), dtype, n, k);
      ASSERT_TRUE(whole.ok());
      const auto packed =
          PackPlainRows(*backend, dtype, n, k, [&](std::uint32_t row, std::byte* out) {
            std::memcpy(out, bytes.data() + row * row_bytes, row_bytes);
          });
      ASSERT_TRUE(packed.ok()) << packed.status();
      EXPECT_EQ(packed->n(), n);
      EXPECT_EQ(packed->k(), k);
      EXPECT_TRUE(std::ranges::equal(packed->element_memory(), whole->element_memory()));
    }
  }
}

TEST(LinearErrorTest, NamesWhatIsWrong) {
  const TestBackend backend(1);
  const std::vector<std::byte> bytes(64);
  EXPECT_THAT(PackLinearWeight(*backend, bytes.data(), DType::kI8, 2, 2).status().message(),
              testing::HasSubstr("int8"));
  EXPECT_FALSE(PackLinearWeight(*backend, bytes.data(), DType::kF32, 0, 2).ok());
  EXPECT_FALSE(PackLinearWeight(*backend, bytes.data(), DType::kF32, 2, 0).ok());
  const auto packed = PackLinearWeight(*backend, bytes.data(), DType::kF32, 4, 4);
  float x[4] = {}, y[4];
  EXPECT_EQ(
      Linear(*backend,
             {.x = x, .weight = &*packed, .y = y, .x_stride = 3, .y_stride = 4, .num_rows = 1})
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Linear(*backend, {.x = x,
                              .weight = &*packed,
                              .residual = x,
                              .y = y,
                              .x_stride = 4,
                              .y_stride = 4,
                              .num_rows = 1})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LinearErrorTest, NanInOneRowDoesNotAffectOthers) {
  const TestBackend backend(1);
  const auto w = RandomFloats(32 * 16, 11);
  const auto packed = PackLinearWeight(*backend, w.data(), DType::kF32, 32, 16);
  auto x = RandomFloats(9 * 16, 12);
  x[4 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(9 * 32);
  ASSERT_TRUE(Linear(*backend, {.x = x.data(),
                                .weight = &*packed,
                                .y = y.data(),
                                .x_stride = 16,
                                .y_stride = 32,
                                .num_rows = 9})
                  .ok());
  for (std::uint32_t i = 0; i < 9 * 32; ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 4) << i;
}

}  // namespace
}  // namespace quire::kernels
