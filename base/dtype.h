#pragma once

// Element types of tensors, and value types for those that C++ lacks. Conversions round to nearest,
// ties to even, and give the same bits on host and device.

#include <bit>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/host_device.h"

namespace quire {

enum class DType : std::uint8_t {
  kInvalid,
  kF32,
  kBF16,
  kF16,
  kF8E4M3,
  kI8,
  kU8,
  kI32,
  kI64,
  kF64,
  kBool
};

// Returns the name used in configuration and messages: "f32", "bf16", "f16", "fp8_e4m3", "int8",
// ...
absl::string_view DTypeName(DType dtype);
// Returns the size of one element in bytes; 0 for kInvalid.
std::int64_t DTypeSize(DType dtype);

// The upper half of an f32. FromFloat converts NaN to a quiet NaN.
struct BF16 {
  std::uint16_t bits;
  static QUIRE_HOST_DEVICE constexpr BF16 FromFloat(float x);
  QUIRE_HOST_DEVICE constexpr float ToFloat() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(BF16, BF16) = default;
};

// IEEE binary16. Overflow gives infinity; subnormals are exact.
struct F16 {
  std::uint16_t bits;
  static QUIRE_HOST_DEVICE constexpr F16 FromFloat(float x);
  QUIRE_HOST_DEVICE constexpr float ToFloat() const;
  friend constexpr bool operator==(F16, F16) = default;
};

// OCP FP8 E4M3 ("fn"): it has no infinities, 0x7f and 0xff are NaN, and the largest value is 448.
// FromFloat saturates.
struct F8E4M3 {
  std::uint8_t bits;
  static QUIRE_HOST_DEVICE constexpr F8E4M3 FromFloat(float x);
  QUIRE_HOST_DEVICE constexpr float ToFloat() const;
  friend constexpr bool operator==(F8E4M3, F8E4M3) = default;
};

// Scale type of a KV cache that is not quantized. Such a cache has no scales and no scale
// accessors.
struct Unquantized {};

template <typename T>
inline constexpr DType kDTypeOf = DType::kInvalid;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<F8E4M3> = DType::kF8E4M3;
template <>
inline constexpr DType kDTypeOf<std::int8_t> = DType::kI8;

// Convert any element type to and from f32.
QUIRE_HOST_DEVICE constexpr float ToFloat(float x) {
  return x;
}
QUIRE_HOST_DEVICE constexpr float ToFloat(BF16 x) {
  return x.ToFloat();
}
QUIRE_HOST_DEVICE constexpr float ToFloat(F16 x) {
  return x.ToFloat();
}
QUIRE_HOST_DEVICE constexpr float ToFloat(F8E4M3 x) {
  return x.ToFloat();
}
QUIRE_HOST_DEVICE constexpr float ToFloat(std::int8_t x) {
  return static_cast<float>(x);
}

template <typename T>
QUIRE_HOST_DEVICE constexpr T FromFloat(float x) {
  return T::FromFloat(x);
}
template <>
QUIRE_HOST_DEVICE constexpr float FromFloat<float>(float x) {
  return x;
}

constexpr BF16 BF16::FromFloat(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return BF16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

constexpr F16 F16::FromFloat(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u)
    return F16{static_cast<std::uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu))};
  if (a >= 0x47800000u) return F16{static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (a < 0x38800000u) {  // below 2^-14: a subnormal, or zero
    if (a < 0x33000000u) return F16{static_cast<std::uint16_t>(sign)};
    const std::uint32_t shift = 126u - (a >> 23);  // 14..24
    const std::uint32_t m = (a & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = m >> shift;
    const std::uint32_t rest = m & ((1u << shift) - 1u);
    const std::uint32_t tie = 1u << (shift - 1u);
    const std::uint32_t up = (rest > tie || (rest == tie && (half & 1u) != 0)) ? 1u : 0u;
    return F16{static_cast<std::uint16_t>(sign | (half + up))};
  }
  const std::uint32_t r = a - 0x38000000u;
  return F16{static_cast<std::uint16_t>(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13))};
}

constexpr float F16::ToFloat() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

constexpr F8E4M3 F8E4M3::FromFloat(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 24) & 0x80u;
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return F8E4M3{static_cast<std::uint8_t>(sign | 0x7fu)};
  // 464 is halfway between 448, the largest value, and 480, which E4M3 cannot represent. Values
  // from 464 on saturate too.
  if (a >= 0x43e80000u) return F8E4M3{static_cast<std::uint8_t>(sign | 0x7eu)};
  if (a < 0x3c800000u) {  // below 2^-6: multiples of 2^-9
    if (a < 0x3a800000u) return F8E4M3{static_cast<std::uint8_t>(sign)};  // below 2^-10
    const std::uint32_t shift = 141u - (a >> 23);
    const std::uint32_t m = (a & 0x7fffffu) | 0x800000u;
    const std::uint32_t eighth = m >> shift;
    const std::uint32_t rest = m & ((1u << shift) - 1u);
    const std::uint32_t tie = 1u << (shift - 1u);
    const std::uint32_t up = (rest > tie || (rest == tie && (eighth & 1u) != 0)) ? 1u : 0u;
    return F8E4M3{static_cast<std::uint8_t>(sign | (eighth + up))};
  }
  const std::uint32_t r = a - 0x3c000000u;
  const std::uint32_t rounded = (r + 0x7ffffu + ((r >> 20) & 1u)) >> 20;
  return F8E4M3{static_cast<std::uint8_t>(sign | (rounded > 0x7eu ? 0x7eu : rounded))};
}

constexpr float F8E4M3::ToFloat() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t exponent = (bits >> 3) & 0xfu;
  const std::uint32_t mantissa = bits & 7u;
  if (exponent == 0xf && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace quire
