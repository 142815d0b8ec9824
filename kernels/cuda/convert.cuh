#pragma once

// Arithmetic with explicit rounding, and conversions of pairs. A pair is a 32-bit register with two
// 16-bit values, the first in the low half.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace quire::kernels::cuda {

// The compiler neither fuses nor splits the following operations, so masked and unmasked loops give
// the same bits.
__device__ __forceinline__ float Fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
__device__ __forceinline__ float Mul(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ __forceinline__ float Add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ __forceinline__ float Sub(float a, float b) {
  return __fsub_rn(a, b);
}
__device__ __forceinline__ float Div(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ __forceinline__ float Sqrt(float a) {
  return __fsqrt_rn(a);
}
__device__ __forceinline__ float Max(float a, float b) {
  return fmaxf(a, b);
}
__device__ __forceinline__ float Min(float a, float b) {
  return fminf(a, b);
}
// Returns 2^x by the special function unit, within 2 ulp. Subnormal results become 0, and 2^-inf is
// 0.
__device__ __forceinline__ float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Returns 1 / x by the special function unit, within 1 ulp. Subnormals are treated as 0. This is
// one instruction, whereas Div needs about twelve and a branch.
__device__ __forceinline__ float ReciprocalApprox(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t PackBF16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ __forceinline__ std::uint32_t PackF16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
// Subtracts both halves. Each difference is rounded once.
__device__ __forceinline__ std::uint32_t SubBF16(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 y = __hsub2(reinterpret_cast<const __nv_bfloat162&>(a),
                                   reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(y);
}
__device__ __forceinline__ float2 UnpackBF16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ float2 UnpackF16(std::uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
// Converts the two e4m3 values in the low 16 bits to a pair of f16, exactly. This is one
// instruction on compute capability 8.9 and later.
__device__ __forceinline__ std::uint32_t E4M3ToF16(std::uint32_t two) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t pair;
  const auto low = static_cast<std::uint16_t>(two);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(low));
  return pair;
#else
  // The sign moves to bit 15, exponent and mantissa to bits 13..7. The resulting f16 is 2^-8 times
  // the value, also for subnormals. NaN becomes 480, but KV pages never contain NaN.
  const std::uint32_t wide = (two & 0xffu) | ((two & 0xff00u) << 8);
  const std::uint32_t bits = ((wide & 0x00800080u) << 8) | ((wide & 0x007f007fu) << 7);
  const __half2 scale = __floats2half2_rn(256.0f, 256.0f);
  const __half2 value = __hmul2(reinterpret_cast<const __half2&>(bits), scale);
  return reinterpret_cast<const std::uint32_t&>(value);
#endif
}
// Rounds to nearest even and saturates to +-448. NaN stays NaN.
__device__ __forceinline__ std::uint8_t FloatToE4M3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ std::uint32_t MulF16(std::uint32_t a, std::uint32_t b) {
  const __half2 y =
      __hmul2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
  return reinterpret_cast<const std::uint32_t&>(y);
}
__device__ __forceinline__ std::uint32_t SubF16(std::uint32_t a, std::uint32_t b) {
  const __half2 y =
      __hsub2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
  return reinterpret_cast<const std::uint32_t&>(y);
}
__device__ __forceinline__ std::uint32_t FmaF16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const __half2 y =
      __hfma2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b),
              reinterpret_cast<const __half2&>(c));
  return reinterpret_cast<const std::uint32_t&>(y);
}
// Selects four bytes of b:a, where a is the low four bytes. Byte i of the result is byte (selector
// >> 4 i) & 7.
__device__ __forceinline__ std::uint32_t BytePermute(std::uint32_t a, std::uint32_t b,
                                                     std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// Computes (a & mask) | bits in one instruction. With two constants the compiler would use two
// instructions.
__device__ __forceinline__ std::uint32_t AndOr(std::uint32_t a, std::uint32_t mask,
                                               std::uint32_t bits) {
  std::uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(mask), "r"(bits));
  return y;
}
__device__ __forceinline__ std::uint32_t FloatBits(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float BitsFloat(std::uint32_t x) {
  return __uint_as_float(x);
}
__device__ __forceinline__ std::uint32_t CountBits(std::uint32_t x) {
  return static_cast<std::uint32_t>(__popc(x));
}
__device__ __forceinline__ std::uint32_t LeadingZeros(std::uint32_t x) {
  return static_cast<std::uint32_t>(__clz(static_cast<int>(x)));
}

}  // namespace quire::kernels::cuda
