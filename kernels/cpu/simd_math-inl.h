// Vector math shared by the *_simd.cc files. Compiled once per instruction set. Highway's toggle
// replaces the include guard.
//
// Every sum over a row has 16 virtual lanes, with element i in lane i mod 16. The lanes occupy one,
// two, four or 16 registers. AVX2 and AVX-512 therefore give the same bits. SSE4 and the scalar
// level have no fused multiply-add and give different bits.

#if defined(QUIRE_KERNELS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_SIMD_MATH_INL_H_
#undef QUIRE_KERNELS_CPU_SIMD_MATH_INL_H_
#else
#define QUIRE_KERNELS_CPU_SIMD_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of at most 16 floats, which are all or some of the virtual lanes of a row.
using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

inline constexpr std::size_t kVirtualLanes = 16;
inline constexpr std::size_t kLanes = HWY_MIN(16, HWY_LANES(float));
// Number of registers that contain the virtual lanes.
inline constexpr std::size_t kRegisters = kVirtualLanes / kLanes;

// Returns e^x within 2 units in the last place: 0 below -86, infinity from 88.73 on, NaN for NaN.
// With x = n ln 2 + r and |r| <= ln 2 / 2, e^r is computed as its Taylor polynomial of degree 7
// (remainder 6e-9).
HWY_INLINE VF Exp(VF x) {
  const DF d;
  const DI di;
  const VF low = hn::Set(d, -86.0f);
  const VF clamped = hn::Min(hn::Max(x, low), hn::Set(d, 89.0f));
  const VF n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  // ln 2 is the sum of two constants. The first has few digits, so its product with n is exact.
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  VF p = hn::Set(d, 1.98412698e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.38888889e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.33333333e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.16666667e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.66666667e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  // 2^n is computed as 2 * 2^(n - 1), because 2^128 is not a float.
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 126));
  const VF scale = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  const VF y = hn::IfThenElseZero(hn::Ge(x, low), hn::Mul(hn::Add(p, p), scale));
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

// Returns tanh(x) within 3 units in the last place; NaN for NaN. The polynomials interpolate at
// Chebyshev nodes. Uses x + x^3 P(x^2) for |x| < 0.625, where 1 - 2 / (e^2x + 1) would lose digits.
HWY_INLINE VF Tanh(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF magnitude = hn::Abs(x);
  const VF z = hn::Mul(x, x);
  VF p = hn::Set(d, -6.09671418e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.09971797e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.38509078e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33327693e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33333284e-1f));
  const VF small = hn::MulAdd(hn::Mul(x, z), p, x);
  const VF power = Exp(hn::Add(magnitude, magnitude));
  const VF large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(power, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
}

// Returns erf(x) within 4 units in the last place; NaN for NaN. Uses x P(x^2) for |x| < 1, and 1 -
// e^Q(|x|) with the sign of x for larger |x|. From |x| = 4 on, the result is 1 or -1.
HWY_INLINE VF Erf(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF magnitude = hn::Abs(x);
  const VF z = hn::Mul(x, x);
  VF p = hn::Set(d, -5.64805989e-4f);
  p = hn::MulAdd(p, z, hn::Set(d, 4.92176181e-3f));
  p = hn::MulAdd(p, z, hn::Set(d, -2.67150551e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.12803169e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.76123428e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.12837911f));
  const VF four = hn::Set(d, 4.0f);
  // The comparison is false for NaN, so NaN is kept.
  const VF clamped = hn::IfThenElse(hn::Gt(magnitude, four), four, magnitude);
  VF q = hn::Set(d, -1.32723617e-5f);
  q = hn::MulAdd(q, clamped, hn::Set(d, 3.16937017e-4f));
  q = hn::MulAdd(q, clamped, hn::Set(d, -3.43235140e-3f));
  q = hn::MulAdd(q, clamped, hn::Set(d, 2.26047728e-2f));
  q = hn::MulAdd(q, clamped, hn::Set(d, -1.03281118e-1f));
  q = hn::MulAdd(q, clamped, hn::Set(d, -6.39141262e-1f));
  q = hn::MulAdd(q, clamped, hn::Set(d, -1.12589359f));
  q = hn::MulAdd(q, clamped, hn::Set(d, -7.65897799e-4f));
  const VF large = hn::Sub(one, Exp(q));
  return hn::IfThenElse(hn::Lt(magnitude, one), hn::Mul(x, p), hn::CopySign(large, x));
}

// Adds the 16 virtual lanes in a fixed order: first lanes i and i + 8, then i and i + 4, then i and
// i + 2, then i and i + 1.
HWY_INLINE float SumLanes(const float* HWY_RESTRICT lanes) {
  float s[8];
  for (std::size_t i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (std::size_t i = 0; i < 4; ++i) s[i] = s[i] + s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// EvenBF16 and EvenF16 widen the low half of every 32-bit lane, OddBF16 and OddF16 the high half. A
// bf16 is the upper half of an f32.
HWY_INLINE VF EvenBF16(VU pairs) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(pairs));
}
HWY_INLINE VF OddBF16(VU pairs) {
  return hn::BitCast(DF(), hn::And(pairs, hn::Set(DU(), 0xffff0000u)));
}

// Rounds to bf16 in the upper half of each lane, to nearest even. The lower half is unspecified.
// NaN stays NaN.
HWY_INLINE VU RoundedBF16(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU rounded = hn::Add(bits, hn::Add(is_odd, hn::Set(du, 0x7fff)));
  const VU nan = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::RebindMask(du, hn::Eq(x, x)), rounded, nan);
}

// Widens the f16 in the low half of each lane. The bits are shifted into the exponent and mantissa
// fields of an f32, which is then multiplied by 2^112. This is exact even for subnormals. Infinity
// and NaN get the f32 exponent of infinity.
HWY_INLINE VF WidenF16(VU low_halves) {
  const DF d;
  const DU du;
  const VU magnitude = hn::ShiftLeft<13>(hn::And(low_halves, hn::Set(du, 0x7fffu)));
  const VF value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const VU special = hn::IfThenElseZero(hn::RebindMask(du, hn::Ge(value, hn::Set(d, 65536.0f))),
                                        hn::Set(du, 0x7f800000u));
  const VU sign = hn::ShiftLeft<31>(hn::ShiftRight<15>(low_halves));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, value), special), sign));
}
// Loads kLanes elements of a row and widens them.
HWY_INLINE VF LoadWide(const float* from) {
  return hn::LoadU(DF(), from);
}
HWY_INLINE VU LoadHalves(const std::uint16_t* from) {
  return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<std::uint16_t, DF>(), from));
}
HWY_INLINE VF LoadWide(const BF16* from) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(LoadHalves(&from->bits)));
}
HWY_INLINE VF LoadWide(const F16* from) {
  return WidenF16(LoadHalves(&from->bits));
}

HWY_INLINE VF EvenF16(VU pairs) {
  return WidenF16(hn::And(pairs, hn::Set(DU(), 0xffffu)));
}
HWY_INLINE VF OddF16(VU pairs) {
  return WidenF16(hn::ShiftRight<16>(pairs));
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
