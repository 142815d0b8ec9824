// AVX-512 without dot products: bytes are widened to 16 bits, even and odd ones apart, and
// multiplied and added in pairs, which cannot overflow.

#include "kernels/cpu/int_linear.h"

#if defined(__x86_64__)

#include "kernels/cpu/int_linear_avx512-inl.h"

namespace quire::kernels::internal {
namespace {

struct Pairs {
  struct Halves {
    __m512i even, odd;
  };
  using Weights = Halves;
  using Inputs = Halves;
  // 16 accumulators, 4 halves of weights, 2 of inputs.
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
