#include "base/dtype.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

// A small float format with `mantissa_bits` of fraction, `bias` and the largest finite value.
// Decode computes values in double precision directly from the definition.
struct Model {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;

  double Decode(std::uint32_t bits) const {
    const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1u);
    const std::uint32_t exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1u);
    const bool is_negative = ((bits >> (mantissa_bits + exponent_bits)) & 1u) != 0;
    const std::uint32_t top = (1u << exponent_bits) - 1u;
    double value = 0;
    if (has_infinity && exponent == top) {
      value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN();
    } else if (!has_infinity && exponent == top && mantissa == (1u << mantissa_bits) - 1u) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    } else {
      value = std::ldexp((1u << mantissa_bits) + mantissa,
                         static_cast<int>(exponent) - bias - mantissa_bits);
    }
    return is_negative ? -value : value;
  }

  int num_bits() const { return 1 + exponent_bits + mantissa_bits; }
};

constexpr Model kModelBF16{8, 7, 127, true};
constexpr Model kModelF16{5, 10, 15, true};
constexpr Model kModelF8{4, 3, 7, false};

template <typename T>
void DecodesEveryPattern(const Model& model) {
  for (std::uint32_t bits = 0; bits < 1u << model.num_bits(); ++bits) {
    const T value{static_cast<decltype(T::bits)>(bits)};
    const double want = model.Decode(bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value.ToFloat())) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(value.ToFloat()), want) << bits;
      EXPECT_EQ(std::signbit(value.ToFloat()), std::signbit(want)) << bits;
    }
  }
}

// Checks FromFloat at every value, every midpoint between neighbours, and next to both. The result
// must be the nearest, with ties to the even pattern.
template <typename T>
void RoundsToNearestEven(const Model& model, std::uint32_t last_finite) {
  for (std::uint32_t bits = 0; bits < last_finite; ++bits) {
    const double low = model.Decode(bits), high = model.Decode(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const std::uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
    const float below = std::nextafter(middle, -INFINITY), above = std::nextafter(middle, INFINITY);
    ASSERT_EQ(T::FromFloat(static_cast<float>(low)).bits, bits);
    ASSERT_EQ(T::FromFloat(middle).bits, even) << bits;
    ASSERT_EQ(T::FromFloat(below).bits, bits);
    ASSERT_EQ(T::FromFloat(above).bits, bits + 1);
    const std::uint32_t sign = 1u << (model.num_bits() - 1);
    ASSERT_EQ(T::FromFloat(-middle).bits, even | sign);
  }
}

TEST(DTypeTest, DecodesEveryBF16) {
  DecodesEveryPattern<BF16>(kModelBF16);
}
TEST(DTypeTest, DecodesEveryF16) {
  DecodesEveryPattern<F16>(kModelF16);
}
TEST(DTypeTest, DecodesEveryF8) {
  DecodesEveryPattern<F8E4M3>(kModelF8);
}

TEST(DTypeTest, RoundsBF16) {
  RoundsToNearestEven<BF16>(kModelBF16, 0x7f7f);
}
TEST(DTypeTest, RoundsF16) {
  RoundsToNearestEven<F16>(kModelF16, 0x7bff);
}
TEST(DTypeTest, RoundsF8) {
  RoundsToNearestEven<F8E4M3>(kModelF8, 0x7e);
}

TEST(DTypeTest, OverflowGoesToInfinityOrSaturates) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(BF16::FromFloat(largest).bits, 0x7f80);
  EXPECT_EQ(BF16::FromFloat(-INFINITY).bits, 0xff80);
  EXPECT_EQ(F16::FromFloat(65519.996f).bits, 0x7bff);
  EXPECT_EQ(F16::FromFloat(65520.0f).bits, 0x7c00);
  EXPECT_EQ(F16::FromFloat(-largest).bits, 0xfc00);
  EXPECT_EQ(F8E4M3::FromFloat(463.9f).ToFloat(), 448.0f);
  EXPECT_EQ(F8E4M3::FromFloat(464.0f).ToFloat(), 448.0f);
  EXPECT_EQ(F8E4M3::FromFloat(-INFINITY).ToFloat(), -448.0f);
}

TEST(DTypeTest, NanStaysNan) {
  for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(BF16::FromFloat(nan).ToFloat())) << bits;
    EXPECT_TRUE(std::isnan(F16::FromFloat(nan).ToFloat())) << bits;
    EXPECT_TRUE(std::isnan(F8E4M3::FromFloat(nan).ToFloat())) << bits;
  }
}

TEST(DTypeTest, TypesHaveUniqueNamesAndSizes) {
  std::set<absl::string_view> names;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8,
                            DType::kU8, DType::kI32, DType::kI64, DType::kF64, DType::kBool}) {
    EXPECT_TRUE(names.insert(DTypeName(dtype)).second) << DTypeName(dtype);
    EXPECT_GT(DTypeSize(dtype), 0);
  }
  EXPECT_EQ(DTypeSize(DType::kInvalid), 0);
}

}  // namespace
}  // namespace quire
