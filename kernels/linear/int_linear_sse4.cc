// The integer linear kernel with SSE4.2; see int_linear_tiles-inl.h. SSE4.2 has no fused
// multiply-add, so the bits differ from those of other instruction sets.

#include "kernels/linear/int_linear.h"

#if defined(__SSE4_2__)

#include <nmmintrin.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

using I = __m128i;
using F = __m128;
constexpr std::size_t kLanes = 4;

#define QUIRE_OP inline __attribute__((always_inline))

QUIRE_OP void Prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0);
}
QUIRE_OP I Load(const void* from) {
  return _mm_loadu_si128(static_cast<const I*>(from));
}
QUIRE_OP void Store(I v, std::int32_t* to) {
  _mm_store_si128(reinterpret_cast<I*>(to), v);
}
QUIRE_OP I Zero() {
  return _mm_setzero_si128();
}
QUIRE_OP I Set16(short v) {
  return _mm_set1_epi16(v);
}
QUIRE_OP I Set32(std::int32_t v) {
  return _mm_set1_epi32(v);
}
// Returns the 4 bytes at `from` in every lane.
QUIRE_OP I Broadcast(const void* from) {
  std::int32_t v;
  __builtin_memcpy(&v, from, 4);
  return _mm_set1_epi32(v);
}
QUIRE_OP I And(I a, I b) {
  return _mm_and_si128(a, b);
}
QUIRE_OP I Add16(I a, I b) {
  return _mm_add_epi16(a, b);
}
QUIRE_OP I Add32(I a, I b) {
  return _mm_add_epi32(a, b);
}
QUIRE_OP I Max32(I a, I b) {
  return _mm_max_epi32(a, b);
}
template <int kBits>
QUIRE_OP I ShiftRight16(I v) {
  return _mm_srli_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftRightSigned16(I v) {
  return _mm_srai_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftLeft16(I v) {
  return _mm_slli_epi16(v, kBits);
}
template <int kBits>
QUIRE_OP I ShiftLeft32(I v) {
  return _mm_slli_epi32(v, kBits);
}
QUIRE_OP I Subtract32(I a, I b) {
  return _mm_sub_epi32(a, b);
}
// MultiplyPairs16 multiplies 16-bit lanes, MultiplyPairs8 unsigned by signed bytes. Both return
// sums of two adjacent products.
QUIRE_OP I MultiplyPairs16(I a, I b) {
  return _mm_madd_epi16(a, b);
}
QUIRE_OP I MultiplyPairs8(I u, I s) {
  return _mm_maddubs_epi16(u, s);
}
QUIRE_OP F LoadF(const float* from) {
  return _mm_loadu_ps(from);
}
QUIRE_OP void StoreF(F v, float* to) {
  _mm_store_ps(to, v);
}
QUIRE_OP F SetF(float v) {
  return _mm_set1_ps(v);
}
QUIRE_OP F BroadcastF(const float* from) {
  return _mm_set1_ps(*from);
}
QUIRE_OP F ToFloat(I v) {
  return _mm_cvtepi32_ps(v);
}
// Rounds to nearest even.
QUIRE_OP I Round(F v) {
  return _mm_cvtps_epi32(v);
}
// Converts f16 by shifting the bits into place and multiplying by 2^112, which is exact even for
// subnormals. Infinity and NaN then get the largest f32 exponent.
QUIRE_OP F LoadF16(const std::uint16_t* from) {
  const I halves = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const I*>(from)));
  const I magnitude = _mm_slli_epi32(_mm_and_si128(halves, _mm_set1_epi32(0x7fff)), 13);
  const F value = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112f));
  const F special = _mm_and_ps(_mm_cmpge_ps(value, _mm_set1_ps(65536.0f)),
                               _mm_castsi128_ps(_mm_set1_epi32(0x7f800000)));
  const F sign = _mm_castsi128_ps(_mm_slli_epi32(_mm_srli_epi32(halves, 15), 31));
  return _mm_or_ps(_mm_or_ps(value, special), sign);
}
QUIRE_OP F Multiply(F a, F b) {
  return _mm_mul_ps(a, b);
}
// Multiplies and adds with two roundings.
QUIRE_OP F MultiplyAdd(F a, F b, F c) {
  return _mm_add_ps(_mm_mul_ps(a, b), c);
}
// Converts 4 values of -128 .. 127 to bytes.
QUIRE_OP std::uint32_t NarrowQuad(const std::int32_t* from) {
  const I v = _mm_load_si128(reinterpret_cast<const I*>(from));
  const I halves = _mm_packs_epi32(v, v);
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_packs_epi16(halves, halves)));
}

}  // namespace
}  // namespace quire::kernels::internal

#include "kernels/linear/int_linear_x86-inl.h"
// This header uses the definitions above.
#include "kernels/linear/int_linear_tiles-inl.h"

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearSse4 = {"sse4", Quantize, Linear};
}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearSse4 = {"sse4", nullptr, nullptr};
}  // namespace quire::kernels::internal

#endif
