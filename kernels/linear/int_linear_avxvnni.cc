// The integer linear kernel with AVX2 and AVX-VNNI; see int_linear_tiles-inl.h. Intel processors
// without AVX-512 have AVX-VNNI from Alder Lake on.
//
// A tile of 4 rows x 2 registers of features uses 14 of 16 registers: 8 accumulators, 2 low and 2
// high halves of weights, 1 broadcast, 1 constant. Like int_linear_avx512vnni.cc, it uses assembly
// to avoid copies of accumulators.

#include "kernels/linear/int_linear.h"

#if defined(__AVXVNNI__)

#include "kernels/linear/int_linear_avx2_ops-inl.h"

namespace quire::kernels::internal {
namespace {

// Sums are over the stored bytes u, not over the integers u - O (int_linear.h).
constexpr bool kCentredBytes = false;
constexpr std::size_t kColumns = 2;

using W = I;
QUIRE_OP W LoadBytes(const std::uint8_t* from) {
  return Load(from);
}
QUIRE_OP W LowHalves(I both) {
  return And(both, Set16(0x0f0f));
}
QUIRE_OP W HighHalves(I both) {
  return And(ShiftRight16<4>(both), Set16(0x0f0f));
}
QUIRE_OP void AddDot(I& acc, W u, I inputs) {
  asm("%{vex%} vpdpbusd %[inputs], %[u], %[acc]"
      : [acc] "+x"(acc)
      : [u] "x"(u), [inputs] "x"(inputs));
}

}  // namespace
}  // namespace quire::kernels::internal

#include "kernels/linear/int_linear_dots-inl.h"
// This header uses the definitions above.
#include "kernels/linear/int_linear_tiles-inl.h"

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearAvxVnni = {"avx_vnni", Quantize, Linear};
}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearAvxVnni = {"avx_vnni", nullptr, nullptr};
}  // namespace quire::kernels::internal

#endif
