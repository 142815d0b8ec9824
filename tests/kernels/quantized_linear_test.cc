#include "kernels/linear/quantized_linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/quantized_test_util.h"

namespace quire::kernels {
namespace {

using testing::HasSubstr;

std::vector<QuantizedShape> Shapes() {
  using enum WeightFormat;
  return {{kInt8, 37, 333, 333},
          {kInt8, 5, 30, 30},
          {kInt8, 130, 1152, 1152},
          {kInt8, 64, 48, 16},
          {kInt8, 50, 1040, 16},
          {kInt8, 37, 352, 32},
          {kInt8, 133, 1056, 32},
          {kInt8, 20, 704, 64},
          {kInt8, 17, 640, 128},
          {kInt8, 35, 48, 16, true},
          {kInt8, 37, 672, 32, true},
          {kInt8, 19, 32, 32, true},
          {kInt4, 37, 352, 32},
          {kInt4, 133, 1056, 32},
          {kInt4, 20, 704, 64},
          {kInt4, 50, 640, 128},
          {kInt4, 3, 32, 32},
          {kInt4, 37, 672, 32, true},
          {kInt4, 66, 1088, 64, true},
          {kInt4, 50, 640, 128, true, true},
          {kInt4, 37, 672, 32, true, true},
          {kInt8, 37, 352, 32, true, true},
          {kInt8, 35, 48, 16, true, true}};
}

class QuantizedLinearTest : public testing::TestWithParam<QuantizedShape> {};

TEST_P(QuantizedLinearTest, StoresTheSourceValues) {
  const TestBackend backend(3);
  const TestMatrix matrix = MakeMatrix(*backend, GetParam(), 1);
  const PackedLinear& packed = matrix.packed;
  EXPECT_EQ(packed.size_bytes(), QuantizedBytes(GetParam()));
  EXPECT_EQ(packed.n(), GetParam().n);
  EXPECT_EQ(packed.k(), GetParam().k);
  EXPECT_EQ(packed.group(), GetParam().group);
  EXPECT_EQ(packed.has_min(), GetParam().has_min);
  EXPECT_EQ(packed.has_zero_points(), GetParam().has_zero_points);
  for (std::uint32_t n = 0; n < packed.n(); ++n) {
    for (std::uint32_t k = 0; k < packed.k(); ++k) {
      const double value = matrix.values[std::size_t{n} * packed.k() + k];
      ASSERT_NEAR(packed.At(n, k), value, 1e-6 * std::fabs(value) + 1e-7) << n << ", " << k;
    }
  }
}

TEST_P(QuantizedLinearTest, ScalarReferenceEqualsDoubleOnQuantizedValues) {
  const TestBackend backend(2);
  const ScopedIsa scalar("scalar");
  const TestMatrix matrix = MakeMatrix(*backend, GetParam(), 2);
  const auto x = RandomFloats(std::size_t{9} * GetParam().k, 3);
  const auto exact = Product(QuantizedInputs(x, GetParam()), matrix);
  EXPECT_LE(RelativeError(Multiply(*backend, matrix.packed, x), exact), 1e-6);
}

TEST_P(QuantizedLinearTest, ActivationQuantizationErrorIsSmall) {
  const TestBackend backend(1);
  const TestMatrix matrix = MakeMatrix(*backend, GetParam(), 4);
  const auto x = RandomFloats(std::size_t{8} * GetParam().k, 5);
  const std::vector<double> wide(x.begin(), x.end());
  // Rounding error of half a step, uniformly distributed: sqrt(1/12) * 4 / 127 for a largest value
  // of 4 deviations. Steps that are powers of two are up to twice that.
  const double limit = GetParam().format == WeightFormat::kInt4 ? 0.018 : 0.012;
  EXPECT_LE(RelativeError(Multiply(*backend, matrix.packed, x), Product(wide, matrix)), limit);
}

// A row equals the scalar reference bitwise on every level with fused multiply-add. On every level
// it does not depend on the number of rows and threads.
TEST_P(QuantizedLinearTest, BitsDependOnTheRowOnly) {
  constexpr std::uint32_t kRows = 71;
  const QuantizedShape& shape = GetParam();
  const std::int64_t x_stride = shape.k + 3;
  const auto x = RandomFloats(static_cast<std::size_t>(kRows * x_stride), 6);
  const auto bias = RandomFloats(shape.n, 7);
  const auto residual = RandomFloats(std::size_t{kRows} * shape.n, 8);
  const TestBackend one(1);
  const TestMatrix matrix = MakeMatrix(*one, shape, 9);
  const auto run = [&](const Backend& backend, std::uint32_t rows, bool extras) {
    GuardedRows y(rows, shape.n);
    // The residual is y itself.
    for (std::uint32_t m = 0; extras && m < rows; ++m) {
      std::copy_n(residual.begin() + m * shape.n, shape.n, y.row(m).begin());
    }
    EXPECT_TRUE(Linear(backend, {.x = x.data(),
                                 .weight = &matrix.packed,
                                 .bias = extras ? bias.data() : nullptr,
                                 .residual = extras ? y.data() : nullptr,
                                 .y = y.data(),
                                 .x_stride = x_stride,
                                 .residual_stride = y.stride(),
                                 .y_stride = y.stride(),
                                 .num_rows = rows})
                    .ok());
    EXPECT_TRUE(y.GuardsIntact());
    return y.Packed();
  };
  std::map<bool, std::vector<float>> reference;
  for (const bool extras : {false, true}) {
    const ScopedIsa scalar("scalar");
    reference[extras] = run(*one, kRows, extras);
  }
  for (const std::string& isa : AvailableIsas()) {
    if (isa == "scalar") continue;
    const ScopedIsa scoped(isa);
    auto expected = reference;
    if (isa == "sse4") {
      for (auto& [extras, y] : expected) {
        const std::vector<double> exact(y.begin(), y.end());
        y = run(*one, kRows, extras);
        EXPECT_LE(RelativeError(y, exact), 1e-6);
      }
    }
    for (const int threads : {1, 2, 3, 7}) {
      const TestBackend backend(threads);
      for (const std::uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 15u, 20u, 64u, 71u}) {
        const bool extras = rows % 2 == 1;
        const auto y = run(*backend, rows, extras);
        ASSERT_EQ(std::memcmp(y.data(), expected[extras].data(), y.size() * 4), 0)
            << isa << " threads " << threads << " rows " << rows;
      }
    }
  }
}

TEST_P(QuantizedLinearTest, NonFiniteRowIsNanAndAffectsNoOther) {
  const QuantizedShape& shape = GetParam();
  const TestBackend backend(2);
  const TestMatrix matrix = MakeMatrix(*backend, shape, 10);
  constexpr std::size_t kRows = 15;  // uses blocks of 8, 4, 2 and 1
  const auto x = RandomFloats(kRows * shape.k, 11);
  auto broken = x;
  broken[1 * shape.k + 3] = kNan;
  broken[4 * shape.k + shape.k - 1] = kInfinity;
  broken[9 * shape.k] = -kInfinity;
  broken[13 * shape.k + 1] = kNan;
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const auto clean = Multiply(*backend, matrix.packed, x);
    const auto y = Multiply(*backend, matrix.packed, broken);
    for (std::size_t m = 0; m < kRows; ++m) {
      for (std::size_t n = 0; n < shape.n; ++n) {
        const std::size_t i = m * shape.n + n;
        if (m == 1 || m == 4 || m == 9 || m == 13) {
          ASSERT_TRUE(std::isnan(y[i])) << isa << " row " << m;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(clean[i]))
              << isa << " row " << m;
        }
      }
    }
  }
}

TEST_P(QuantizedLinearTest, RowsOfExtremeMagnitudes) {
  const QuantizedShape& shape = GetParam();
  const TestBackend backend(2);
  const TestMatrix matrix = MakeMatrix(*backend, shape, 12);
  // Blocks of 8 and 4 rows alternate zeros and almost zeros, alone and next to numbers.
  constexpr std::size_t kRows = 12;
  auto x = RandomFloats(kRows * shape.k, 13);
  const auto vanishes = [](std::size_t row) { return row < 6 || row == 9; };
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::uint32_t i = 0; i < shape.k; ++i) {
      float& value = x[row * shape.k + i];
      if (!vanishes(row)) {
        value *= 1e30f;
      } else if (row % 2 == 0) {
        value = i % 3 == 0 ? 0.0f : -0.0f;
      } else {
        value *= 1e-40f;
      }
    }
  }
  const auto exact = Product(QuantizedInputs(x, shape), matrix);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const auto y = Multiply(*backend, matrix.packed, x);
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::size_t first = row * shape.n;
      for (std::size_t i = first; vanishes(row) && i < first + shape.n; ++i) {
        ASSERT_EQ(y[i], 0.0f) << isa << " row " << row;
      }
      if (vanishes(row)) continue;
      EXPECT_LE(RelativeError(std::span(y).subspan(first, shape.n),
                              std::span(exact).subspan(first, shape.n)),
                1e-6)
          << isa << " row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantizedLinearTest, testing::ValuesIn(Shapes()),
                         [](const auto& info) { return NameOf(info.param); });

// Kernels of 4-bit weights add the exponents of scales, so both ends of the ranges matter. All
// levels are compared with double, including a scale of 0 with nonzero integers.
TEST(QuantizedScalesTest, Handles4BitRangeEnds) {
  using enum WeightFormat;
  constexpr std::array<float, 8> kScales = {0.0f,     -0x1p-24f, 0x1p-24f, -0x3p-20f,
                                            65504.0f, 1.0f,      -2.5f,    -65504.0f};
  for (const QuantizedShape& shape :
       {QuantizedShape{kInt4, 37, 512, 32}, QuantizedShape{kInt4, 37, 512, 64, true},
        QuantizedShape{kInt4, 37, 512, 32, true, true}}) {
    const TestBackend backend(2);
    const std::uint32_t groups = shape.k / shape.group;
    std::vector<double> values;
    auto packed =
        PackQuantizedRows(*backend, shape, [&](std::uint32_t row, const QuantizedRow& out) {
          for (std::uint32_t g = 0; g < groups; ++g) {
            out.scales[g] = kScales[(row + g) % kScales.size()];
          }
          for (std::uint32_t i = 0; i < shape.k; ++i) {
            out.q[i] = static_cast<std::int8_t>((row * 5 + i * 7) % 16 - (shape.has_min ? 0 : 8));
          }
          for (std::uint32_t g = 0; g < out.mins.size(); ++g)
            out.mins[g] = -static_cast<float>(g % 8);
        });
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (std::uint32_t n = 0; n < shape.n; ++n) {
      for (std::uint32_t i = 0; i < shape.k; ++i) {
        const double scale = kScales[(n + i / shape.group) % kScales.size()];
        const double q = (n * 5 + i * 7) % 16 - (shape.has_min ? 0.0 : 8.0);
        const double min = shape.has_min ? -static_cast<double>(i / shape.group % 8) : 0.0;
        values.push_back(shape.has_zero_points ? scale * (q + min) : scale * q + min);
        ASSERT_EQ(packed->At(n, i), static_cast<float>(values.back())) << NameOf(shape);
      }
    }
    const TestMatrix matrix{shape, *std::move(packed), values};
    for (const float magnitude : {0x1p-94f, 0x1p-60f, 1.0f, 0x1p90f}) {
      std::vector<float> x = RandomFloats(std::size_t{13} * shape.k, 14);
      for (float& value : x) value *= magnitude;
      const auto exact = Product(QuantizedInputs(x, shape), matrix);
      for (const std::string& isa : AvailableIsas()) {
        const ScopedIsa scoped(isa);
        EXPECT_LE(RelativeError(Multiply(*backend, matrix.packed, x), exact), 1e-6)
            << NameOf(shape) << " " << isa << " " << magnitude;
      }
    }
  }
}

// Inputs at the values where the scale of an input group changes: around 127 times a power of two,
// and at the ends.
TEST(QuantizedScalesTest, HandlesInputScaleBoundaries) {
  using enum WeightFormat;
  std::vector<float> largest;
  for (const float edge : {0x1p-96f, 127 * 0x1p-20f, 1.0f, 127.0f, 254.0f, 0x1p117f}) {
    for (const float value : {std::nextafter(edge, 0.0f), edge, std::nextafter(edge, kInfinity)}) {
      largest.push_back(value);
    }
  }
  for (const QuantizedShape& shape :
       {QuantizedShape{kInt4, 20, 64, 32}, QuantizedShape{kInt8, 20, 64, 32}}) {
    const TestBackend backend(1);
    const TestMatrix matrix = MakeMatrix(*backend, shape, 15);
    std::vector<float> x = RandomFloats(largest.size() * shape.k, 16);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float top = largest[i / shape.k];
      x[i] = i % 32 == 5 ? -top : std::remainder(x[i], 1.0f) * top;
    }
    const auto exact = Product(QuantizedInputs(x, shape), matrix);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const auto y = Multiply(*backend, matrix.packed, x);
      for (std::size_t row = 0; row < largest.size(); ++row) {
        const auto got = std::span(y).subspan(row * shape.n, shape.n);
        if (largest[row] >= 0x1p117f) {
          for (const float value : got) ASSERT_TRUE(std::isnan(value)) << isa << largest[row];
          continue;
        }
        EXPECT_LE(RelativeError(got, std::span(exact).subspan(row * shape.n, shape.n)), 1e-6)
            << NameOf(shape) << " " << isa << " " << largest[row];
      }
    }
  }
}

TEST(QuantizedScalesTest, RejectsNonFinite4BitScales) {
  const TestBackend backend(1);
  const QuantizedShape shape{WeightFormat::kInt4, 20, 64, 32};
  for (const float scale : {kNan, kInfinity, 65520.0f}) {
    const auto packed =
        PackQuantizedRows(*backend, shape, [&](std::uint32_t row, const QuantizedRow& out) {
          std::fill(out.q.begin(), out.q.end(), std::int8_t{1});
          std::fill(out.scales.begin(), out.scales.end(), row == 17 ? scale : 1.0f);
        });
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument) << scale;
    EXPECT_THAT(packed.status().message(), HasSubstr("f16 cannot represent")) << scale;
  }
}

// With an act-order permutation the result equals that of inputs permuted before, bitwise,
// including a non-finite input.
TEST(QuantizedOrderTest, EqualsTheProductOfPermutedInputs) {
  using enum WeightFormat;
  for (QuantizedShape shape :
       {QuantizedShape{kInt4, 37, 352, 32}, QuantizedShape{kInt4, 50, 640, 128, true, true},
        QuantizedShape{kInt8, 35, 48, 16}}) {
    const TestBackend backend(3);
    const TestMatrix plain = MakeMatrix(*backend, shape, 5);
    std::vector<std::uint32_t> order(shape.k);
    for (std::uint32_t i = 0; i < shape.k; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(6));
    shape.has_act_order = true;
    const TestMatrix ordered = MakeMatrix(*backend, shape, 5, order);
    EXPECT_EQ(ordered.packed.size_bytes(), QuantizedBytes(shape));
    for (std::uint32_t n = 0; n < shape.n; n += 7) {
      for (std::uint32_t i = 0; i < shape.k; ++i) {
        ASSERT_EQ(ordered.packed.At(n, order[i]), plain.packed.At(n, i)) << n << " " << i;
      }
    }
    for (const std::uint32_t rows : {1u, 3u, 21u}) {
      std::vector<float> x = RandomFloats(std::size_t{rows} * shape.k, 7);
      x[shape.k / 2] = rows == 3 ? kNan : 1;
      std::vector<float> moved(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        moved[i] = x[i / shape.k * shape.k + order[i % shape.k]];
      }
      const auto want = Multiply(*backend, plain.packed, moved);
      const auto got = Multiply(*backend, ordered.packed, x);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
          << NameOf(shape) << " rows " << rows;
    }
    EXPECT_EQ(QuantizedLinearScratchBytes(9, shape.k, true) -
                  QuantizedLinearScratchBytes(9, shape.k, false),
              9 * 4 * ((shape.k + 15) / 16 * 16));
  }
}

TEST(QuantizedShapeTest, RejectsUnsupportedShapes) {
  using enum WeightFormat;
  const std::vector<std::pair<QuantizedShape, std::string>> refused = {
      {{kPlain, 16, 64, 32}, "plain"},
      {{kFp8E4M3, 16, 64, 64}, "fp8_e4m3"},
      {{kInt8, 0, 64, 64}, "[0, 64]"},
      {{kInt8, 16, 0, 0}, "[16, 0]"},
      {{kInt8, 16, 65540, 65540}, "65536"},
      {{kInt8, 16, 96, 48}, "groups of 48"},
      {{kInt8, 16, 80, 32}, "80 inputs in groups of 32"},
      {{kInt8, 16, 80, 80, true}, "with minimums"},
      {{kInt8, 16, 64, 32, false, true}, "zero points without has_min"},
      {{kInt4, 16, 64, 32, true, false, true}, "an act-order permutation and minimums"},
      {{kInt4, 16, 64, 16}, "32, 64 or 128"},
      {{kInt4, 16, 256, 256}, "groups of 256"}};
  const TestBackend backend(1);
  for (const auto& [shape, part] : refused) {
    const absl::Status status = CheckQuantizedShape(shape);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    const auto nothing = [](std::uint32_t, const QuantizedRow&) {};
    EXPECT_EQ(PackQuantizedRows(*backend, shape, nothing).status(), status);
  }
  for (const QuantizedShape& shape : Shapes()) {
    EXPECT_TRUE(CheckQuantizedShape(shape).ok()) << NameOf(shape);
  }
}

struct Quantized {
  std::vector<std::int8_t> q;
  std::vector<float> scales;
};

Quantized QuantizeOne(WeightFormat format, std::uint32_t group, std::span<const float> row) {
  Quantized result{std::vector<std::int8_t>(row.size()), std::vector<float>(row.size() / group)};
  QuantizeRow(format, group, row, {result.q, result.scales, {}});
  return result;
}

double SquaredError(std::span<const float> row, const Quantized& quantized, std::uint32_t group) {
  double error = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double difference = row[i] - double{quantized.scales[i / group]} * quantized.q[i];
    error += difference * difference;
  }
  return error;
}

TEST(QuantizeRowTest, Int8IsWithinHalfAStep) {
  constexpr std::uint32_t kInputs = 512;
  const auto row = RandomFloats(kInputs, 20, 0.02f);
  for (const std::uint32_t group : {16u, 32u, 64u, 128u, kInputs}) {
    const Quantized quantized = QuantizeOne(WeightFormat::kInt8, group, row);
    for (std::uint32_t i = 0; i < kInputs; ++i) {
      const float scale = quantized.scales[i / group];
      // f16 scales have a relative error of up to 2^-11, which 127 steps multiply.
      EXPECT_LE(std::fabs(row[i] - scale * static_cast<float>(quantized.q[i])), 0.57f * scale);
      if (group != kInputs) {
        EXPECT_EQ(F16::FromFloat(scale).ToFloat(), scale);
      }
    }
  }
}

TEST(QuantizeRowTest, Int4BeatsMaxAbsScaling) {
  constexpr std::uint32_t kInputs = 4096;
  const auto row = RandomFloats(kInputs, 21, 0.02f);
  for (const std::uint32_t group : {32u, 64u, 128u}) {
    Quantized plain{std::vector<std::int8_t>(kInputs), std::vector<float>(kInputs / group)};
    for (std::uint32_t i = 0; i < kInputs; i += group) {
      float extreme = 0;
      for (std::uint32_t j = i; j < i + group; ++j) {
        if (std::fabs(row[j]) > std::fabs(extreme)) extreme = row[j];
      }
      const float scale = extreme / -8;
      plain.scales[i / group] = scale;
      for (std::uint32_t j = i; j < i + group; ++j) {
        plain.q[j] = static_cast<std::int8_t>(std::clamp(std::round(row[j] / scale), -8.0f, 7.0f));
      }
    }
    const Quantized best = QuantizeOne(WeightFormat::kInt4, group, row);
    EXPECT_LT(SquaredError(row, best, group), 0.93 * SquaredError(row, plain, group));
    double power = 0;
    for (const float value : row) power += double{value} * value;
    EXPECT_LE(std::sqrt(SquaredError(row, best, group) / power), group == 32 ? 0.085 : 0.105);
  }
}

// Covers groups whose scale is a normal f16 number down to groups whose scale rounds to zero.
TEST(QuantizeRowTest, Int8OfTinyValuesIsWithinItsBound) {
  // More than one group, since the scale would otherwise be f32.
  const auto unit = RandomFloats(256, 22);
  for (const std::uint32_t group : {16u, 32u, 128u}) {
    for (double size = 1e-2; size > 1e-9; size *= 0.7) {
      std::vector<float> row(unit.size());
      double largest = 0;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = unit[i] * static_cast<float>(size);
      const Quantized quantized = QuantizeOne(WeightFormat::kInt8, group, row);
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (i % group == 0) {
          largest = 0;
          for (std::size_t j = i; j < i + group; ++j) {
            largest = std::max(largest, std::fabs(double{row[j]}));
          }
        }
        const double scale = quantized.scales[i / group];
        const double error = std::fabs(row[i] - scale * quantized.q[i]);
        ASSERT_GE(scale, 0x1p-24);
        ASSERT_LE(error, 0.5001 * scale) << size;
        ASSERT_LE(error, (largest / 254 + 0x1p-25) * (1 + 0x1p-10)) << size;
      }
    }
  }
}

// Compares with all f16 scales for such values.
TEST(QuantizeRowTest, Int4OfTinyValuesIsNearTheBestScale) {
  constexpr std::uint32_t kGroup = 32;
  const auto unit = RandomFloats(kGroup, 23);
  for (double size = 2e-5; size > 1e-9; size *= 0.8) {
    std::vector<float> row(kGroup);
    double zero = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = unit[i] * static_cast<float>(size);
      zero += double{row[i]} * row[i];
    }
    double best = zero;
    for (int step = -200; step <= 200; ++step) {
      const double scale = step * 0x1p-24;
      double error = 0;
      for (const float value : row) {
        const double q = step == 0 ? 0 : std::clamp(std::nearbyint(value / scale), -8.0, 7.0);
        error += (value - scale * q) * (value - scale * q);
      }
      best = std::min(best, error);
    }
    const double error = SquaredError(row, QuantizeOne(WeightFormat::kInt4, kGroup, row), kGroup);
    EXPECT_LE(error, zero) << size;
    EXPECT_LE(error, 1.5 * best) << size;
  }
}

TEST(QuantizeRowTest, KeepsRepresentableValues) {
  std::vector<float> row(64);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = (static_cast<float>(i % 16) - 8) * 0.25f;
  const Quantized int4 = QuantizeOne(WeightFormat::kInt4, 32, row);
  EXPECT_EQ(SquaredError(row, int4, 32), 0);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = (static_cast<float>(i * 4) - 127) * 0.5f;
  row[63] = 63.5f;
  const Quantized int8 = QuantizeOne(WeightFormat::kInt8, 64, row);
  EXPECT_EQ(SquaredError(row, int8, 64), 0);
}

TEST(QuantizeRowTest, HandlesZerosAndNonFiniteValues) {
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    std::vector<float> row(96, 0.0f);
    row[40] = kNan;
    row[41] = 1.0f;
    row[70] = kInfinity;
    const Quantized quantized = QuantizeOne(format, 32, row);
    EXPECT_EQ(quantized.scales[0], 0.0f);
    EXPECT_TRUE(std::isnan(quantized.scales[1]));
    EXPECT_TRUE(std::isnan(quantized.scales[2]));
    EXPECT_EQ(quantized.q, std::vector<std::int8_t>(96, 0));
  }
}

}  // namespace
}  // namespace quire::kernels
