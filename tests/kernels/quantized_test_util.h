#pragma once

// Matrices of integer weights for tests, and their products in double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/linear/quantized_linear.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::string NameOf(const QuantizedShape& shape) {
  return absl::StrCat(WeightFormatName(shape.format), "_g", shape.group,
                      shape.has_zero_points ? "_zero"
                      : shape.has_min       ? "_min"
                                            : "",
                      "_n", shape.n, "_k", shape.k);
}

// A matrix with every integer of its format, and the values that it represents in double.
struct TestMatrix {
  QuantizedShape shape;
  PackedLinear packed;
  std::vector<double> values;  // [n][k]
};

inline TestMatrix MakeMatrix(const Backend& backend, const QuantizedShape& shape,
                             std::uint32_t seed, std::span<const std::uint32_t> order = {}) {
  const std::uint32_t groups = shape.k / shape.group;
  std::mt19937 rng(seed);
  const bool is_int4 = shape.format == WeightFormat::kInt4;
  const int low = shape.has_min ? 0 : is_int4 ? -8 : -128;
  std::uniform_int_distribution<int> integer(low, low + (is_int4 ? 15 : 255));
  std::uniform_real_distribution<float> scale(0.001f, 0.02f);
  std::vector<int> q(std::size_t{shape.n} * shape.k);
  for (int& value : q) value = integer(rng);
  std::vector<float> scales(std::size_t{shape.n} * groups);
  for (float& value : scales) value = scale(rng);
  std::vector<float> mins(shape.has_min ? scales.size() : 0);
  for (float& value : mins) {
    value = shape.has_zero_points ? -static_cast<float>(integer(rng) + 1) : -8 * scale(rng);
  }
  auto packed = PackQuantizedRows(
      backend, shape,
      [&](std::uint32_t row, const QuantizedRow& out) {
        EXPECT_EQ(out.q.size(), shape.k);
        EXPECT_EQ(out.scales.size(), groups);
        EXPECT_EQ(out.mins.size(), shape.has_min ? groups : 0);
        for (std::uint32_t k = 0; k < shape.k; ++k) {
          out.q[k] = static_cast<std::int8_t>(q[std::size_t{row} * shape.k + k]);
        }
        std::copy_n(scales.begin() + row * groups, groups, out.scales.begin());
        if (shape.has_min) std::copy_n(mins.begin() + row * groups, groups, out.mins.begin());
      },
      order);
  EXPECT_TRUE(packed.ok()) << packed.status();
  TestMatrix matrix{shape, *std::move(packed), {}};
  const auto stored = [&](float value) {
    return double{shape.scale_per_feature() ? value : F16::FromFloat(value).ToFloat()};
  };
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::size_t g = i / shape.k * groups + i % shape.k / shape.group;
    const double min = shape.has_min ? stored(mins[g]) : 0.0;
    matrix.values.push_back(shape.has_zero_points ? (q[i] + min) * stored(scales[g])
                                                  : q[i] * stored(scales[g]) + min);
  }
  return matrix;
}

// Returns the activations after their quantization for weights of this shape, in double. A group
// with a non-finite value is NaN.
inline std::vector<double> QuantizedInputs(std::span<const float> x, const QuantizedShape& shape) {
  const std::uint32_t k = shape.k;
  const std::uint32_t wide = std::max(shape.group, 32u);
  std::vector<double> values(x.begin(), x.end());
  for (std::size_t row = 0; row < x.size() / k; ++row) {
    for (std::size_t begin = row * k; begin < (row + 1) * k; begin += wide) {
      const std::size_t end = std::min(begin + wide, (row + 1) * k);
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) {
        largest = std::isfinite(x[i]) ? std::max(largest, std::fabs(x[i])) : kNan;
        if (std::isnan(largest)) break;
      }
      for (std::size_t i = begin; i < end; ++i) {
        if (largest < 0x1p-96f) {
          values[i] = 0;
        } else if (shape.format == WeightFormat::kInt4) {
          const double step = std::exp2(std::ceil(std::log2(double{largest} / 127)));
          values[i] = std::nearbyint(x[i] / step) * step;
        } else {
          // The factor is that of the contract, rounded once to f32, since ties could otherwise
          // differ.
          values[i] = std::nearbyint(x[i] * (127.0f / largest)) * double{largest / 127.0f};
        }
      }
    }
  }
  return values;
}

inline std::vector<double> Product(std::span<const double> x, const TestMatrix& matrix) {
  const std::size_t k = matrix.shape.k;
  std::vector<double> y;
  for (std::size_t m = 0; m < x.size() / k; ++m) {
    for (std::size_t n = 0; n < matrix.shape.n; ++n) {
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i) sum += x[m * k + i] * matrix.values[n * k + i];
      y.push_back(sum);
    }
  }
  return y;
}

inline std::vector<float> Multiply(const Backend& backend, const PackedLinear& weight,
                                   std::span<const float> x) {
  const std::size_t rows = x.size() / weight.k();
  std::vector<float> y(rows * weight.n(), kNan);
  EXPECT_TRUE(Linear(backend, {.x = x.data(),
                               .weight = &weight,
                               .y = y.data(),
                               .x_stride = weight.k(),
                               .y_stride = weight.n(),
                               .num_rows = static_cast<std::uint32_t>(rows)})
                  .ok());
  return y;
}

}  // namespace quire::kernels
