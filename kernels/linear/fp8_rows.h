#pragma once

// Dynamic activation quantization to e4m3 with one scale per row, for matrices with
// PackedLinear::quantizes_activations. CPUs and GPUs compute the same bits.
//
// The scale is the smallest power of two, at least 2^-100, that brings the largest magnitude of the
// row to at most 448. It is 1 for a row of zeros. Therefore x / scale is exact, or below half the
// smallest e4m3 value. The quotient is rounded to the nearest e4m3 value, ties to even. The rounded
// value times scale is exact in f32 and in bf16. A row with a NaN, an infinity or a magnitude of at
// least 2^79 has the scale NaN, and all its values become NaN.

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels {

// Returns the bits of |x|. As integers they have the order of the magnitudes, with infinity above
// all numbers and NaN above infinity.
QUIRE_HOST_DEVICE constexpr std::uint32_t MagnitudeBits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

// Returns the scale of a row whose largest MagnitudeBits are `largest`.
QUIRE_HOST_DEVICE constexpr float Fp8RowScale(std::uint32_t largest) {
  constexpr std::uint32_t kTooLarge = 0x67000000u;  // 2^79
  constexpr std::uint32_t kLeast = 27;              // exponent of 2^-100
  if (largest >= kTooLarge) return std::bit_cast<float>(0x7fc00000u);
  if (largest == 0) return 1.0f;
  // 448 is 1.75 * 2^8.
  const std::uint32_t exponent = (largest >> 23) + ((largest & 0x7fffffu) > 0x600000u ? 1u : 0u);
  return std::bit_cast<float>((exponent < kLeast + 8 ? kLeast : exponent - 8) << 23);
}

// Returns 1 / scale, which is exact; NaN for NaN.
QUIRE_HOST_DEVICE constexpr float InverseFp8RowScale(float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  return bits > 0x7f800000u ? scale : std::bit_cast<float>(0x7f000000u - bits);
}

// Computes to[i] = e4m3(from[i] / scale) * scale * factor for i in [0, k). `factor` is a power of
// two. `to` may be `from`.
void RoundRowFp8(const float* from, std::int64_t k, float factor, float* to);

}  // namespace quire::kernels
