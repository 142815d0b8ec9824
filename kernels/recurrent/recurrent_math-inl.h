// Vector functions of the recurrent ops, compiled once per instruction set; Highway's toggle
// replaces the include guard.

#if defined(QUIRE_KERNELS_RECURRENT_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_RECURRENT_MATH_INL_H_
#undef QUIRE_KERNELS_RECURRENT_MATH_INL_H_
#else
#define QUIRE_KERNELS_RECURRENT_MATH_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels {
namespace HWY_NAMESPACE {

// LoadSome and StoreSome load and store up to kLanes elements. LoadSome sets the other lanes to 0.
HWY_INLINE VF LoadSome(const float* from, std::size_t count) {
  if (count >= kLanes) return hn::LoadU(DF(), from);
  HWY_ALIGN float lanes[kLanes] = {};
  std::copy_n(from, count, lanes);
  return hn::Load(DF(), lanes);
}
HWY_INLINE void StoreSome(VF x, float* to, std::size_t count) {
  if (count >= kLanes) return hn::StoreU(x, DF(), to);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(x, DF(), lanes);
  std::copy_n(lanes, count, to);
}

// Returns 1 / (1 + e^-x).
HWY_INLINE VF Sigmoid(VF x) {
  const VF one = hn::Set(DF(), 1.0f);
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
}

// Returns x / (1 + e^-x).
HWY_INLINE VF Silu(VF x) {
  return hn::Div(x, hn::Add(hn::Set(DF(), 1.0f), Exp(hn::Neg(x))));
}

// Returns ln(1 + e^x) within 4 units in the last place, as max(x, 0) + log1p(u) with u = e^-|x|.
// With s = u / (2 + u), at most 1/3, log1p(u) = 2 (s + s^3 / 3 + s^5 / 5 + ...). The terms after
// s^17 are below 2e-10 of the sum.
HWY_INLINE VF Softplus(VF x) {
  const DF d;
  const VF u = Exp(hn::Neg(hn::Abs(x)));
  const VF s = hn::Div(u, hn::Add(hn::Set(d, 2.0f), u));
  const VF z = hn::Mul(s, s);
  VF p = hn::Set(d, 1.0f / 17);
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 15));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 13));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 11));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 9));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 7));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 5));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f / 3));
  const VF twice = hn::Add(s, s);
  const VF log = hn::MulAdd(hn::Mul(twice, z), p, twice);
  return hn::Add(hn::Max(x, hn::Zero(d)), log);
}

// Returns the sum of squares, summed in the 16 virtual lanes.
HWY_INLINE float SumOfSquares(const float* x, std::size_t count) {
  const DF d;
  VF sum[kRegisters];
  for (std::size_t c = 0; c < kRegisters; ++c) sum[c] = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += kVirtualLanes) {
    for (std::size_t c = 0; c < kRegisters && i + c * kLanes < count; ++c) {
      const VF value = LoadSome(x + i + c * kLanes, count - i - c * kLanes);
      sum[c] = hn::MulAdd(value, value, sum[c]);
    }
  }
  HWY_ALIGN float lanes[kVirtualLanes];
  for (std::size_t c = 0; c < kRegisters; ++c) hn::Store(sum[c], d, lanes + c * kLanes);
  return SumLanes(lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
