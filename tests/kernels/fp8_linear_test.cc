#include "kernels/linear/fp8_linear.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/linear/fp8_rows.h"
#include "kernels/linear/quantized_linear.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/rounded_rows.h"

namespace quire::kernels {
namespace {

// Random fp8 weights and scales of a matrix. No value is NaN.
struct Matrix {
  Matrix(const Fp8Shape& shape_in, std::uint32_t seed)
      : shape(shape_in),
        codes(std::size_t{shape_in.n} * shape_in.k),
        scales(std::size_t{shape_in.n} * shape_in.num_groups()) {
    std::mt19937 random(seed);
    for (std::uint8_t& code : codes) {
      do code = static_cast<std::uint8_t>(random());
      while ((code & 0x7f) == 0x7f);
    }
    std::uniform_real_distribution<float> scale(-1e-3f, 1e-3f);
    for (float& s : scales) s = scale(random);
  }
  absl::StatusOr<PackedLinear> Pack(const Backend& backend) const {
    return PackFp8Rows(backend, shape, [&](std::uint32_t row, const Fp8Row& out) {
      std::copy_n(codes.begin() + std::ptrdiff_t{row} * shape.k, shape.k, out.codes.begin());
      std::copy_n(scales.begin() + std::ptrdiff_t{row} * shape.num_groups(), out.scales.size(),
                  out.scales.begin());
    });
  }
  // Returns one product of exact factors.
  float At(std::size_t n, std::size_t k) const {
    return F8E4M3{codes[n * shape.k + k]}.ToFloat() *
           scales[n * shape.num_groups() + k / shape.group];
  }

  Fp8Shape shape;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

std::vector<float> Multiply(const Backend& backend, const PackedLinear& weight,
                            const std::vector<float>& x, std::uint32_t rows) {
  GuardedRows y(rows, weight.n());
  EXPECT_TRUE(Linear(backend, {.x = x.data(),
                               .weight = &weight,
                               .y = y.data(),
                               .x_stride = weight.k(),
                               .y_stride = y.stride(),
                               .num_rows = rows})
                  .ok());
  EXPECT_TRUE(y.GuardsIntact());
  return y.Packed();
}

class Fp8LinearTest : public testing::TestWithParam<std::tuple<Fp8Shape, std::uint32_t>> {};

TEST_P(Fp8LinearTest, EqualsDoubleOnEveryInstructionSet) {
  const auto& [shape, rows] = GetParam();
  const TestBackend backend(rows % 2 == 0 ? 3 : 1);
  const Matrix matrix(shape, 1);
  const auto packed = matrix.Pack(*backend);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->size_bytes(), Fp8Bytes(shape));
  const auto x = RandomFloats(std::size_t{rows} * shape.k, 2);
  std::vector<double> exact;
  for (std::size_t m = 0; m < rows; ++m) {
    for (std::size_t n = 0; n < shape.n; ++n) {
      double sum = 0;
      for (std::size_t k = 0; k < shape.k; ++k) {
        ASSERT_EQ(packed->At(static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(k)),
                  matrix.At(n, k));
        sum += double{x[m * shape.k + k]} * matrix.At(n, k);
      }
      exact.push_back(sum);
    }
  }
  std::vector<float> fused;  // of the levels with fused multiply-add
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const std::vector<float> got = Multiply(*backend, *packed, x, rows);
    EXPECT_LE(RelativeError(got, exact), 1e-6) << isa;
    if (isa.find("avx") == std::string::npos) continue;
    if (fused.empty()) fused = got;
    EXPECT_EQ(got, fused) << isa;
    for (std::uint32_t m = 0; m < rows; ++m) {
      const auto begin = x.begin() + std::ptrdiff_t{m} * shape.k;
      const std::vector<float> alone =
          Multiply(*backend, *packed, std::vector<float>(begin, begin + shape.k), 1);
      EXPECT_EQ(std::memcmp(alone.data(), got.data() + std::size_t{m} * shape.n, shape.n * 4), 0)
          << isa << " row " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Fp8LinearTest,
    testing::Combine(testing::Values(Fp8Shape{1, 1, 1}, Fp8Shape{16, 4, 4}, Fp8Shape{15, 34, 34},
                                     Fp8Shape{17, 255, 128}, Fp8Shape{64, 272, 128},
                                     Fp8Shape{80, 600, 600}, Fp8Shape{130, 259, 4},
                                     Fp8Shape{48, 700, 300}),
                     testing::Values(1u, 2u, 5u, 8u, 17u)),
    [](const auto& info) {
      const Fp8Shape& shape = std::get<0>(info.param);
      return absl::StrCat("n", shape.n, "_k", shape.k, "_g", shape.group, "_m",
                          std::get<1>(info.param));
    });

// Multiplying every fp8 value, with the largest and smallest scales, by one input of 1 returns the
// value bitwise.
TEST(Fp8LinearExactTest, EveryFp8ValueIsExact) {
  const TestBackend backend(1);
  const Fp8Shape shape{256, 4, 4};
  Matrix matrix(shape, 3);
  const float largest = std::numeric_limits<float>::max() / 448;
  for (std::size_t n = 0; n < shape.n; ++n) {
    const auto code = static_cast<std::uint8_t>((n & 0x7f) == 0x7f ? 0 : n);
    for (std::size_t k = 0; k < shape.k; ++k) matrix.codes[n * shape.k + k] = code;
    matrix.scales[n] = n % 3 == 0 ? largest : n % 3 == 1 ? 1e-30f : 1.0f;
  }
  const auto packed = matrix.Pack(*backend);
  ASSERT_TRUE(packed.ok());
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (std::size_t k = 0; k < shape.k; ++k) {
      std::vector<float> x(shape.k, 0.0f);
      x[k] = 1;
      const std::vector<float> got = Multiply(*backend, *packed, x, 1);
      for (std::size_t n = 0; n < shape.n; ++n) {
        EXPECT_EQ(got[n], matrix.At(n, k)) << isa << " code " << n << " input " << k;
      }
    }
  }
}

// With this number of inputs, 8 rows at a time fit the scratch memory. y is the residual.
TEST(Fp8LinearManyInputsTest, SeveralPassesEqualSingleRows) {
  constexpr std::uint32_t kRows = 19, kInputs = 70000, kOutputs = 5;
  const TestBackend backend(2);
  const Matrix matrix({kOutputs, kInputs, 128}, 7);
  const auto packed = matrix.Pack(*backend);
  ASSERT_TRUE(packed.ok());
  const auto x = RandomFloats(std::size_t{kRows} * kInputs, 8);
  const auto bias = RandomFloats(kOutputs, 9);
  const auto residual = RandomFloats(std::size_t{kRows} * kOutputs, 10);
  const auto multiply = [&](std::uint32_t row, std::uint32_t rows, float* y) {
    ASSERT_TRUE(Linear(*backend, {.x = x.data() + std::size_t{row} * kInputs,
                                  .weight = &*packed,
                                  .bias = bias.data(),
                                  .residual = y,
                                  .y = y,
                                  .x_stride = kInputs,
                                  .residual_stride = kOutputs,
                                  .y_stride = kOutputs,
                                  .num_rows = rows})
                    .ok());
  };
  std::vector<float> together = residual;
  multiply(0, kRows, together.data());
  for (std::uint32_t m = 0; m < kRows; ++m) {
    const auto begin = residual.begin() + std::ptrdiff_t{m} * kOutputs;
    std::vector<float> alone(begin, begin + kOutputs);
    multiply(m, 1, alone.data());
    for (std::size_t n = 0; n < kOutputs; ++n) {
      double sum = double{bias[n]} + residual[m * kOutputs + n];
      for (std::size_t k = 0; k < kInputs; ++k) {
        sum += double{x[std::size_t{m} * kInputs + k]} * matrix.At(n, k);
      }
      EXPECT_NEAR(alone[n], sum, 1e-3) << "row " << m;
      EXPECT_EQ(alone[n], together[m * kOutputs + n]) << "row " << m;
    }
  }
}

// Compares rows of every magnitude, with ties, zeros and subnormals, with all fp8 values in double
// precision.
TEST(RoundRowTest, RoundsToTheNearestValueWithTheSmallestScale) {
  constexpr std::size_t kColumns = 64;
  std::mt19937 random(11);
  std::vector<float> x;
  for (int exponent = -149; exponent < 79; ++exponent) {
    const std::vector<float> row =
        RandomFloats(kColumns, static_cast<std::uint32_t>(exponent + 200));
    for (std::size_t i = 0; i < kColumns; ++i) {
      float value = std::ldexp(std::fmod(row[i], 2.0f), exponent - 1);
      // The midpoint between two fp8 values of some scale.
      if (i % 4 == 0) value = std::ldexp(static_cast<float>(random() % 32), exponent - 5);
      if (i % 16 == 1) value = 0;
      x.push_back(value);
    }
  }
  const std::vector<float> want = RoundedRows(x, kColumns);
  std::vector<float> got(x.size());
  for (std::size_t first = 0; first < x.size(); first += kColumns) {
    RoundRowFp8(x.data() + first, kColumns, 1, got.data() + first);
  }
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], want[i]) << x[i] << " at " << i;
}

TEST(RoundRowTest, ScalesArePowersOfTwoWithExactInverses) {
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(448)), 1.0f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(std::nextafter(448.0f, 1e9f))), 2.0f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(-225)), 1.0f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(224)), 0.5f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(0.0f)), 1.0f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(-0.0f)), 1.0f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(1e-45f)), 0x1p-100f);
  EXPECT_EQ(Fp8RowScale(MagnitudeBits(std::nextafter(0x1p79f, 0.0f))), 0x1p71f);
  for (const float beyond :
       {0x1p79f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(Fp8RowScale(MagnitudeBits(beyond))));
    EXPECT_TRUE(std::isnan(InverseFp8RowScale(Fp8RowScale(MagnitudeBits(beyond)))));
  }
  for (int exponent = -100; exponent < 72; ++exponent) {
    const float scale = std::ldexp(1.0f, exponent);
    EXPECT_EQ(InverseFp8RowScale(scale), std::ldexp(1.0f, -exponent));
  }
}

// Only the rows are rounded. The result equals that of rows rounded before, bitwise.
TEST(RoundedFp8LinearTest, EqualsTheProductOfRoundedRows) {
  const TestBackend backend(2);
  for (Fp8Shape shape : {Fp8Shape{17, 255, 128}, Fp8Shape{80, 600, 600}, Fp8Shape{48, 700, 300}}) {
    const auto exact = Matrix(shape, 1).Pack(*backend);
    shape.quantizes_activations = true;
    const Matrix matrix(shape, 1);
    const auto packed = matrix.Pack(*backend);
    ASSERT_TRUE(exact.ok() && packed.ok()) << packed.status();
    EXPECT_TRUE(packed->quantizes_activations() && !exact->quantizes_activations());
    constexpr std::uint32_t kRows = 9;
    auto x = RandomFloats(std::size_t{kRows} * shape.k, 2);
    for (std::uint32_t k = 0; k < shape.k; ++k) {
      x[k] = 0;
      x[3 * shape.k + k] *= 1e-12f;
      x[4 * shape.k + k] *= 1e12f;
    }
    x[5 * shape.k + 7] = std::numeric_limits<float>::infinity();
    x[8 * shape.k] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> rounded = RoundedRows(x, shape.k);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const std::vector<float> got = Multiply(*backend, *packed, x, kRows);
      const std::vector<float> want = Multiply(*backend, *exact, rounded, kRows);
      std::vector<float> plain(got.size());
      internal::LinearCpu({.x = x.data(),
                           .weight = &*packed,
                           .y = plain.data(),
                           .x_stride = shape.k,
                           .y_stride = shape.n,
                           .num_rows = kRows});
      for (std::uint32_t i = 0; i < got.size(); ++i) {
        const std::uint32_t row = i / shape.n;
        if (row == 5 || row == 8) {
          ASSERT_TRUE(std::isnan(got[i]) && std::isnan(plain[i])) << isa << " row " << row;
          continue;
        }
        ASSERT_EQ(got[i], want[i]) << isa << " row " << row;
      }
      const std::vector<float> unrounded = Multiply(*backend, *exact, x, kRows);
      for (const std::size_t row : {1u, 2u, 3u, 4u, 6u, 7u}) {
        const auto begin = static_cast<std::ptrdiff_t>(row * shape.n);
        EXPECT_LE(RelativeError(
                      {got.data() + begin, shape.n},
                      std::vector<double>(plain.begin() + begin, plain.begin() + begin + shape.n)),
                  1e-5)
            << isa << " row " << row;
        EXPECT_NE(
            std::memcmp(got.data() + begin, unrounded.data() + begin, shape.n * sizeof(float)), 0)
            << isa << ": row " << row << " was not rounded";
      }
    }
  }
}

TEST(Fp8ShapeTest, RejectsUnsupportedShapes) {
  EXPECT_TRUE(CheckFp8Shape({16, 33, 33}).ok());
  EXPECT_TRUE(CheckFp8Shape({16, 33, 32}).ok());
  for (const Fp8Shape& shape : {Fp8Shape{0, 8, 8}, Fp8Shape{8, 0, 0}, Fp8Shape{16, 33, 6},
                                Fp8Shape{16, 33, 36}, Fp8Shape{16, 33, 0}}) {
    EXPECT_EQ(CheckFp8Shape(shape).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(AllocateFp8Linear(shape).ok());
  }
}

}  // namespace
}  // namespace quire::kernels
