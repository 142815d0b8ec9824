// The integer linear kernel with AVX2, FMA and F16C; see int_linear_tiles-inl.h.

#include "kernels/linear/int_linear.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernels/linear/int_linear_avx2_ops-inl.h"
// This header uses the definitions of the header above.
#include "kernels/linear/int_linear_x86-inl.h"
// This header uses the definitions of both headers above.
#include "kernels/linear/int_linear_tiles-inl.h"

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearAvx2 = {"avx2", Quantize, Linear};
}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearAvx2 = {"avx2", nullptr, nullptr};
}  // namespace quire::kernels::internal

#endif
