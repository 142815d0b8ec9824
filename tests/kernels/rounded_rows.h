#pragma once

// Defines rounding rows to e4m3 (kernels/linear/fp8_rows.h) by comparing with every e4m3 value in
// double precision. It shares no code with the tested function.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace quire::kernels {

// Returns the magnitudes of e4m3 values 0 .. 126, ascending.
inline const std::vector<double>& E4M3Magnitudes() {
  static const std::vector<double> magnitudes = [] {
    std::vector<double> values;
    for (int code = 0; code < 127; ++code) {
      const int exponent = code / 8;
      values.push_back(exponent == 0 ? std::ldexp(code % 8, -9)
                                     : std::ldexp(8 + code % 8, exponent - 10));
    }
    return values;
  }();
  return magnitudes;
}

// Returns the nearest magnitude. Ties select the even value.
inline double NearestE4M3(double x) {
  const std::vector<double>& all = E4M3Magnitudes();
  std::size_t best = 0;
  for (std::size_t code = 1; code < all.size(); ++code) {
    const double now = std::abs(std::abs(x) - all[code]);
    const double before = std::abs(std::abs(x) - all[best]);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return std::copysign(all[best], x);
}

// Rounds rows of `columns` values each.
inline std::vector<float> RoundedRows(std::span<const float> x, std::size_t columns) {
  std::vector<float> rounded;
  for (std::size_t first = 0; first < x.size(); first += columns) {
    const std::span<const float> row = x.subspan(first, columns);
    double most = 0;
    bool is_finite = true;
    for (const float value : row) {
      is_finite &= std::abs(value) < 0x1p79f;
      most = std::max(most, std::abs(double{value}));
    }
    double scale = std::numeric_limits<double>::quiet_NaN();
    if (is_finite) {
      scale = 0x1p-100;
      while (most / scale > 448) scale *= 2;
    }
    for (const float value : row) {
      rounded.push_back(static_cast<float>(NearestE4M3(value / scale) * scale));
    }
  }
  return rounded;
}

}  // namespace quire::kernels
