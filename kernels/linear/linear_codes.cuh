#pragma once

// Codes of 8 and 4 bits to bf16 in registers, exactly, in the order of linear_reduction.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear/linear.h"

namespace quire::kernels::cuda {

// 2^23 + u is a float whose low bits are u, so subtracting 2^23 and a zero point is exact.
inline constexpr std::uint32_t kMagicBits = 0x4b000000u;
inline constexpr float kMagic = 8388608.0f;

// Pairs of bf16 from the eight e2m1 of a word: the two bytes of each come from tables of eight.
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

// The A fragment of one MMA step from eight (four) bytes of the packed order. `zeros`: kMagic plus
// the zero points of integers, of the two features of this lane.
template <WeightFormat kFormat>
__device__ __forceinline__ void Dequantize(std::uint32_t (&a)[4], std::uint32_t low,
                                           std::uint32_t high, const float (&zeros)[2]) {
  if constexpr (kFormat == WeightFormat::kFp4E2M1) {
    WidenE2M1(a, low);
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t word = i < 2 ? low : high;
      if constexpr (kFormat == WeightFormat::kInt4) {
        const float first = BitsFloat(kMagicBits | ((low >> (8 * i)) & 0xfu));
        const float second = BitsFloat(kMagicBits | ((low >> (8 * i + 4)) & 0xfu));
        a[i] = PackBF16(Sub(first, zeros[i % 2]), Sub(second, zeros[i % 2]));
      } else if constexpr (kFormat == WeightFormat::kInt8) {
        const std::uint32_t byte = i % 2 * 2;
        const float first = BitsFloat(BytePermute(word, kMagicBits, 0x7440u + byte));
        const float second = BitsFloat(BytePermute(word, kMagicBits, 0x7441u + byte));
        a[i] = PackBF16(Sub(first, zeros[i % 2]), Sub(second, zeros[i % 2]));
      } else {
        const float2 pair = UnpackF16(E4M3ToF16((word >> (i % 2 * 16)) & 0xffffu));
        a[i] = PackBF16(pair.x, pair.y);
      }
    }
  }
}

// kMagic plus the zero points of the features of a lane in blocks of 16 features from `first` on;
// `from`: of a tile, of one group.
template <std::uint32_t kBlocks>
__device__ __forceinline__ void LoadZeros(float (&zeros)[kBlocks][2], const std::byte* from,
                                          std::uint32_t first) {
#pragma unroll
  for (std::uint32_t n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t feature = first + n * 16 + half * 8 + Lane() / 4;
      zeros[n][half] = BitsFloat(kMagicBits | static_cast<std::uint32_t>(from[feature]));
    }
  }
}

// Scale `feature` of a group: f16 of integers, f32 of e4m3, bf16 of e2m1.
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
