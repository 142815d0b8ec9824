#pragma once

// Host emulation of kernels/cuda/convert.cuh with the same names and contracts. The host compiler
// neither fuses nor splits operations here (-ffp-contract=off).

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"

namespace quire::kernels::cuda {

inline float Fma(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float Mul(float a, float b) {
  return a * b;
}
inline float Add(float a, float b) {
  return a + b;
}
inline float Sub(float a, float b) {
  return a - b;
}
inline float Div(float a, float b) {
  return a / b;
}
inline float Sqrt(float a) {
  return std::sqrt(a);
}
inline float Max(float a, float b) {
  return std::fmax(a, b);
}
inline float Min(float a, float b) {
  return std::fmin(a, b);
}
inline float Exp2Approx(float x) {
  if (std::fabs(x) < 0x1p-126f) x = 0.0f;
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float ReciprocalApprox(float x) {
  if (std::fabs(x) < 0x1p-126f) x = std::copysign(0.0f, x);
  const float y = 1.0f / x;
  return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y;
}

inline std::uint32_t PackBF16(float low, float high) {
  return BF16::FromFloat(low).bits | static_cast<std::uint32_t>(BF16::FromFloat(high).bits) << 16;
}
inline std::uint32_t PackF16(float low, float high) {
  return F16::FromFloat(low).bits | static_cast<std::uint32_t>(F16::FromFloat(high).bits) << 16;
}
inline float2 UnpackBF16(std::uint32_t pair) {
  return {std::bit_cast<float>(pair << 16), std::bit_cast<float>(pair & 0xffff0000u)};
}
inline float2 UnpackF16(std::uint32_t pair) {
  return {F16{static_cast<std::uint16_t>(pair)}.ToFloat(),
          F16{static_cast<std::uint16_t>(pair >> 16)}.ToFloat()};
}
inline std::uint32_t E4M3ToF16(std::uint32_t two) {
  return PackF16(F8E4M3{static_cast<std::uint8_t>(two)}.ToFloat(),
                 F8E4M3{static_cast<std::uint8_t>(two >> 8)}.ToFloat());
}
inline std::uint8_t FloatToE4M3(float x) {
  return F8E4M3::FromFloat(x).bits;
}
// Products of two f16 are exact in f32 and sums of two in f64, so each result is rounded once.
inline std::uint32_t MulF16(std::uint32_t a, std::uint32_t b) {
  const float2 x = UnpackF16(a);
  const float2 y = UnpackF16(b);
  return PackF16(x.x * y.x, x.y * y.y);
}
namespace internal {
// Returns the f16 nearest to a sum in f64. The intermediate f32 is rounded to odd, which preserves
// ties.
inline float RoundToOdd(double x) {
  const float y = static_cast<float>(x);
  if (static_cast<double>(y) == x || std::isnan(x)) return y;
  const auto bits = std::bit_cast<std::uint32_t>(y);
  if ((bits & 1u) != 0) return y;
  const bool too_far = std::fabs(static_cast<double>(y)) > std::fabs(x);
  return std::bit_cast<float>(too_far ? bits - 1 : bits + 1);
}
}  // namespace internal
inline std::uint32_t SubF16(std::uint32_t a, std::uint32_t b) {
  const float2 x = UnpackF16(a);
  const float2 y = UnpackF16(b);
  return PackF16(internal::RoundToOdd(static_cast<double>(x.x) - y.x),
                 internal::RoundToOdd(static_cast<double>(x.y) - y.y));
}
inline std::uint32_t SubBF16(std::uint32_t a, std::uint32_t b) {
  const float2 x = UnpackBF16(a);
  const float2 y = UnpackBF16(b);
  return PackBF16(internal::RoundToOdd(static_cast<double>(x.x) - y.x),
                  internal::RoundToOdd(static_cast<double>(x.y) - y.y));
}
inline std::uint32_t FmaF16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const float2 x = UnpackF16(a);
  const float2 y = UnpackF16(b);
  const float2 z = UnpackF16(c);
  return PackF16(internal::RoundToOdd(static_cast<double>(x.x) * y.x + z.x),
                 internal::RoundToOdd(static_cast<double>(x.y) * y.y + z.y));
}
inline std::uint32_t BytePermute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t out = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t pick = selector >> (4 * i) & 7u;
    const auto byte = static_cast<std::uint32_t>(both >> (8 * pick) & 0xffu);
    out |= byte << (8 * i);
  }
  return out;
}
inline std::uint32_t AndOr(std::uint32_t a, std::uint32_t mask, std::uint32_t bits) {
  return (a & mask) | bits;
}
inline std::uint32_t FloatBits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
inline float BitsFloat(std::uint32_t x) {
  return std::bit_cast<float>(x);
}
inline std::uint32_t CountBits(std::uint32_t x) {
  return static_cast<std::uint32_t>(std::popcount(x));
}
inline std::uint32_t LeadingZeros(std::uint32_t x) {
  return static_cast<std::uint32_t>(std::countl_zero(x));
}

}  // namespace quire::kernels::cuda
