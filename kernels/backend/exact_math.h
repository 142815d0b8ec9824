#pragma once

// Elementary functions with the same bits on host and device. Every operation is an IEEE operation
// and every fused multiply-add is explicit, so compilers cannot produce different results.

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels {

// Returns e^x within 2 units in the last place: 0 below -86, infinity from 88.73 on, NaN for NaN.
// Uses the polynomial of cpu/simd_math-inl.h with fused multiply-adds.
QUIRE_HOST_DEVICE inline float ExactExp(float x) {
  if (!(x >= -86.0f)) return x != x ? x : 0.0f;
  const float clamped = x < 89.0f ? x : 89.0f;
  const float n = rintf(clamped * 1.44269504f);
  float r = fmaf(-n, 0.693359375f, clamped);
  r = fmaf(-n, -2.12194440e-4f, r);
  float p = 1.98412698e-4f;
  p = fmaf(p, r, 1.38888889e-3f);
  p = fmaf(p, r, 8.33333333e-3f);
  p = fmaf(p, r, 4.16666667e-2f);
  p = fmaf(p, r, 1.66666667e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  // 2^n is computed as 2 * 2^(n - 1), because 2^128 is not a float.
  const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 126);
  return (p + p) * std::bit_cast<float>(exponent << 23);
}

// Returns ln u for a positive normal u, with a relative error below 1e-15. With u = m 2^k and m
// near 1, ln m = 2 atanh(s), s = (m - 1) / (m + 1). Since s^2 <= 0.0295, ten terms of the series
// leave an error of 2e-17.
QUIRE_HOST_DEVICE inline double ExactLog(double u) {
  const auto bits = std::bit_cast<std::uint64_t>(u);
  auto k = static_cast<std::int32_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    ++k;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 21.0;
  p = fma(p, z, 1.0 / 19.0);
  p = fma(p, z, 1.0 / 17.0);
  p = fma(p, z, 1.0 / 15.0);
  p = fma(p, z, 1.0 / 13.0);
  p = fma(p, z, 1.0 / 11.0);
  p = fma(p, z, 1.0 / 9.0);
  p = fma(p, z, 1.0 / 7.0);
  p = fma(p, z, 1.0 / 5.0);
  p = fma(p, z, 1.0 / 3.0);
  const double tail = (s + s) * z;
  const double ln_m = fma(tail, p, s + s);
  return fma(static_cast<double>(k), 0.6931471805599453, ln_m);
}

// Converts the random word r to an exponential variate -ln u with u = (r + 0.5) / 2^32. f64
// represents u exactly.
QUIRE_HOST_DEVICE inline float ExponentialVariate(std::uint32_t r) {
  return static_cast<float>(-ExactLog((static_cast<double>(r) + 0.5) * 0x1p-32));
}

struct CosSin {
  float cos;
  float sin;
};

// Returns cosine and sine of any angle with |angle| < 2^31, each within 1.5e-7. Multiples of pi / 2
// are subtracted in f64, with pi / 2 as the sum of two constants. Taylor polynomials in f32
// (truncation error 2e-9) are evaluated for the remainder, which is at most pi / 4.
QUIRE_HOST_DEVICE inline CosSin ExactCosSin(float angle) {
  const auto a = static_cast<double>(angle);
  const double n = rint(a * 0.6366197723675814);
  double reduced = fma(-n, 1.5707963267948966, a);
  reduced = fma(-n, 6.123233995736766e-17, reduced);
  const auto r = static_cast<float>(reduced);
  const float z = r * r;
  float s = fmaf(z, 2.75573192e-6f, -1.98412698e-4f);
  s = fmaf(s, z, 8.33333333e-3f);
  s = fmaf(s, z, -1.66666667e-1f);
  const float rz = r * z;
  const float sine = fmaf(s, rz, r);
  float c = fmaf(z, -2.75573192e-7f, 2.48015873e-5f);
  c = fmaf(c, z, -1.38888889e-3f);
  c = fmaf(c, z, 4.16666667e-2f);
  c = fmaf(c, z, -0.5f);
  const float cosine = fmaf(c, z, 1.0f);
  const auto quadrant = static_cast<std::uint32_t>(static_cast<std::int64_t>(n)) & 3u;
  const float x = (quadrant & 1u) != 0 ? sine : cosine;
  const float y = (quadrant & 1u) != 0 ? cosine : sine;
  return {quadrant == 1 || quadrant == 2 ? -x : x, quadrant >= 2 ? -y : y};
}

}  // namespace quire::kernels
