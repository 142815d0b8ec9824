#pragma once

// Converts weights of 8 and 4 bits to bf16 in registers without rounding. Their layout is that of
// linear_reduction.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear/linear.h"

namespace quire::kernels::cuda {

// 2^23 + u is a float whose low bits are u, and 128 + u is a bf16. Therefore both
// (2^23 + u) - (2^23 + zero point) and (128 + u) - (128 + zero point) are exact. Zero points are at
// most 128, because 128 + 128 is the largest such bf16.
inline constexpr std::uint32_t kMagicBits = 0x4b000000u;
inline constexpr std::uint32_t kMagicPairBits = 0x43004300u;

// Returns the offset that is subtracted from the integers of a feature whose zero point is byte
// `index` of `zeros`. The result is the bits of a float for 8 bits, or of a pair of bf16 for 4
// bits.
template <WeightFormat kFormat>
__device__ __forceinline__ std::uint32_t OffsetOf(std::uint32_t zeros, std::uint32_t index) {
  if constexpr (kFormat == WeightFormat::kInt8) {
    return kMagicBits | (zeros >> (8 * index) & 0xffu);
  }
  return BytePermute(zeros, kMagicPairBits, 0x5050u + 0x0101u * index);
}

// Converts the eight e2m1 values of a word to pairs of bf16. The two bytes of a magnitude come from
// tables with eight entries.
__device__ __forceinline__ void WidenE2M1(std::uint32_t (&a)[4], std::uint32_t word) {
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t four = word >> (16 * half);
    const std::uint32_t magnitudes = four & 0x7777u;
    const std::uint32_t high = BytePermute(0x3f3f3f00u, 0x40404040u, magnitudes);
    const std::uint32_t low = BytePermute(0xc0800000u, 0xc0804000u, magnitudes);
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t two = four >> (8 * i);
      a[half * 2 + i] = BytePermute(low, high, i == 0 ? 0x5140u : 0x7362u) |
                        ((two << 12) & 0x8000u) | ((two << 24) & 0x80000000u);
    }
  }
}

// Returns the A fragment of one MMA step. 8-bit weights are in `low` and `high`, 4-bit weights in
// `low` only. `offsets` has the offsets (OffsetOf) of the lane's two features. It is used only for
// integers.
template <WeightFormat kFormat>
__device__ __forceinline__ void Dequantize(std::uint32_t (&a)[4], std::uint32_t low,
                                           std::uint32_t high, const std::uint32_t (&offsets)[2]) {
  if constexpr (kFormat == WeightFormat::kFp4E2M1) {
    WidenE2M1(a, low);
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t word = i < 2 ? low : high;
      if constexpr (kFormat == WeightFormat::kInt4) {
        a[i] = SubBF16(AndOr(low >> (4 * i), 0x000f000fu, kMagicPairBits), offsets[i % 2]);
      } else if constexpr (kFormat == WeightFormat::kInt8) {
        const std::uint32_t byte = i % 2 * 2;
        const float first = BitsFloat(BytePermute(word, kMagicBits, 0x7440u + byte));
        const float second = BitsFloat(BytePermute(word, kMagicBits, 0x7441u + byte));
        const float offset = BitsFloat(offsets[i % 2]);
        a[i] = PackBF16(Sub(first, offset), Sub(second, offset));
      } else {
        const float2 pair = UnpackF16(E4M3ToF16((word >> (i % 2 * 16)) & 0xffffu));
        a[i] = PackBF16(pair.x, pair.y);
      }
    }
  }
}

// Loads the offsets of the lane's features in kBlocks blocks of 16 features from `first` on.
// `zeros` are the zero points of a tile for one group.
template <WeightFormat kFormat, std::uint32_t kBlocks>
__device__ __forceinline__ void LoadOffsets(std::uint32_t (&offsets)[kBlocks][2],
                                            const std::byte* zeros, std::uint32_t first) {
#pragma unroll
  for (std::uint32_t n = 0; n < kBlocks; ++n) {
    const auto* const block_zeros = reinterpret_cast<const std::uint16_t*>(zeros + first + n * 16);
    const std::uint32_t two = block_zeros[Lane() / 4];
    offsets[n][0] = OffsetOf<kFormat>(two, 0);
    offsets[n][1] = OffsetOf<kFormat>(two, 1);
  }
}

// Returns scale `feature` of a group: f16 for integers, f32 for e4m3, bf16 for e2m1.
template <WeightFormat kFormat>
__device__ __forceinline__ float GroupScale(const std::byte* scales, std::uint32_t feature) {
  if constexpr (kFormat == WeightFormat::kFp8E4M3) {
    return reinterpret_cast<const float*>(scales)[feature];
  } else {
    const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(scales)[feature];
    return kFormat == WeightFormat::kFp4E2M1 ? UnpackBF16(bits).x : UnpackF16(bits).x;
  }
}

}  // namespace quire::kernels::cuda
