// The integer linear kernel with AVX-512 without dot product instructions. 8-bit weights are split
// into even and odd bytes in 16-bit lanes. They are multiplied and added in pairs, which cannot
// overflow. The sum of two products of 4-bit weights is at most 2 * 15 * 127 and fits in 16 bits,
// so 4-bit weights are multiplied as bytes.

#include "kernels/linear/int_linear.h"

#if defined(__x86_64__)

#include "kernels/linear/int_linear_avx512-inl.h"

namespace quire::kernels::internal {
namespace {

struct Nibbles {
  using Weights = __m512i;
  using Inputs = __m512i;
  static constexpr int kTilePanels = 2;

  static inline __attribute__((always_inline)) Weights Widen(__m512i u) { return u; }
  static inline __attribute__((always_inline)) Inputs Spread(const std::int8_t* a) {
    return _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(a));
  }
  static inline __attribute__((always_inline)) void Dot(__m512i& acc, Weights w, Inputs a) {
    const __m512i pairs = _mm512_maddubs_epi16(w, a);
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    // Keeps the compiler from adding products to each other before it adds them to acc. That would
    // need too many registers.
    asm("" : "+v"(acc));
  }
};

struct Pairs {
  using ForInt4 = Nibbles;
  struct Halves {
    __m512i even, odd;
  };
  using Weights = Halves;
  using Inputs = Halves;
  // Registers: 16 accumulators, 4 halves of weights, 2 of inputs.
  static constexpr int kTilePanels = 2;

  static inline __attribute__((always_inline)) Weights Widen(__m512i u) {
    return {_mm512_and_si512(u, _mm512_set1_epi16(255)), _mm512_srli_epi16(u, 8)};
  }
  static inline __attribute__((always_inline)) Inputs Spread(const std::int8_t* a) {
    const __m512i all =
        _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(a));
    return {_mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), _mm512_srai_epi16(all, 8)};
  }
  static inline __attribute__((always_inline)) void Dot(__m512i& acc, Weights w, Inputs a) {
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w.even, a.even));
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w.odd, a.odd));
  }
};

}  // namespace

const IntLinearKernels kIntLinearAvx512 = {"avx512", Quantize, Linear<Pairs>};

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {

const IntLinearKernels kIntLinearAvx512 = {"avx512", nullptr, nullptr};

}  // namespace quire::kernels::internal

#endif
