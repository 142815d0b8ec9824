// Operations on 256-bit registers for int_linear_tiles-inl.h, with AVX2, FMA and F16C. Included by
// int_linear_avx2.cc and int_linear_avxvnni.cc.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

using I = __m256i;
using F = __m256;
constexpr std::size_t kLanes = 8;

#define QUIRE_OP inline __attribute__((always_inline))

QUIRE_OP void Prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0);
}
QUIRE_OP I Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const I*>(from));
}
QUIRE_OP void Store(I v, std::int32_t* to) {
  _mm256_store_si256(reinterpret_cast<I*>(to), v);
}
QUIRE_OP I Zero() {
  return _mm256_setzero_si256();
}
QUIRE_OP I Set16(short v) {
  return _mm256_set1_epi16(v);
}
QUIRE_OP I Set32(std::int32_t v) {
  return _mm256_set1_epi32(v);
}
// Returns the 4 bytes at `from` in every lane.
QUIRE_OP I Broadcast(const void* from) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(from)));
}
QUIRE_OP I And(I a, I b) {
  return _mm256_and_si256(a, b);
}
QUIRE_OP I Add16(I a, I b) {
  return _mm256_add_epi16(a, b);
}
QUIRE_OP I Add32(I a, I b) {
  return _mm256_add_epi32(a, b);
}
QUIRE_OP I Max32(I a, I b) {
  return _mm256_max_epi32(a, b);
}
template <int kBits>
QUIRE_OP I ShiftRight16(I v) {
  return _mm256_srli_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftRightSigned16(I v) {
  return _mm256_srai_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftLeft16(I v) {
  return _mm256_slli_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftLeft32(I v) {
  return _mm256_slli_epi32(v, kBits);
}
QUIRE_OP I Subtract32(I a, I b) {
  return _mm256_sub_epi32(a, b);
}
// MultiplyPairs16 multiplies 16-bit lanes, MultiplyPairs8 unsigned by signed bytes. Both return
// sums of two adjacent products.
QUIRE_OP I MultiplyPairs16(I a, I b) {
  return _mm256_madd_epi16(a, b);
}
QUIRE_OP I MultiplyPairs8(I u, I s) {
  return _mm256_maddubs_epi16(u, s);
}
QUIRE_OP F LoadF(const float* from) {
  return _mm256_loadu_ps(from);
}
QUIRE_OP void StoreF(F v, float* to) {
  _mm256_store_ps(to, v);
}
QUIRE_OP F SetF(float v) {
  return _mm256_set1_ps(v);
}
QUIRE_OP F BroadcastF(const float* from) {
  return _mm256_broadcast_ss(from);
}
QUIRE_OP F ToFloat(I v) {
  return _mm256_cvtepi32_ps(v);
}
// Rounds to nearest even.
QUIRE_OP I Round(F v) {
  return _mm256_cvtps_epi32(v);
}
QUIRE_OP F LoadF16(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
QUIRE_OP F Multiply(F a, F b) {
  return _mm256_mul_ps(a, b);
}
QUIRE_OP F MultiplyAdd(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
// Converts 4 values of -128 .. 127 to bytes.
QUIRE_OP std::uint32_t NarrowQuad(const std::int32_t* from) {
  const __m128i v = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i halves = _mm_packs_epi32(v, v);
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_packs_epi16(halves, halves)));
}

}  // namespace
}  // namespace quire::kernels::internal
