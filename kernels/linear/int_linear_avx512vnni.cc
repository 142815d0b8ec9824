// The integer linear kernel with AVX-512 VNNI, which has a dot product of unsigned and signed bytes
// without saturation. The instruction is written as assembly, because with the intrinsic g++ 12
// copies accumulators to and from the stack.

#include "kernels/linear/int_linear.h"

#if defined(__x86_64__)

#include "kernels/linear/int_linear_avx512-inl.h"

namespace quire::kernels::internal {
namespace {

struct Vnni {
  using ForInt4 = Vnni;
  using Weights = __m512i;
  using Inputs = __m512i;
  // Registers: 24 accumulators, 3 weights, 1 input.
  static constexpr int kTilePanels = 3;

  static inline __attribute__((always_inline)) Weights Widen(__m512i u) { return u; }
  static inline __attribute__((always_inline)) Inputs Spread(const std::int8_t* a) {
    return _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(a));
  }
  static inline __attribute__((always_inline)) void Dot(__m512i& acc, Weights w, Inputs a) {
    asm("vpdpbusd %[a], %[w], %[acc]" : [acc] "+v"(acc) : [w] "v"(w), [a] "v"(a));
  }
};

}  // namespace

const IntLinearKernels kIntLinearAvx512Vnni = {"avx512_vnni", Quantize, Linear<Vnni>};

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {

const IntLinearKernels kIntLinearAvx512Vnni = {"avx512_vnni", nullptr, nullptr};

}  // namespace quire::kernels::internal

#endif
