// The vector code of KvStore. It takes about 1 % of the time of a layer. It reads 4 bytes and
// writes 1 to 4 bytes per element of K and V. Quantization reads a head twice, the second time from
// L1. The bytes equal those of FromFloat and QuantizeGroup.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cache_manager/views/kv_quantize.h"
#include "kernels/kv_store/kv_store.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_store/kv_store_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

using D8 = hn::Rebind<std::uint8_t, DF>;
using D8S = hn::Rebind<std::int8_t, DF>;

// Returns the maximum magnitude of a head, or NaN if one of its values is not finite.
HWY_INLINE float LargestMagnitude(const float* HWY_RESTRICT x, std::size_t count) {
  const DF d;
  VF max = hn::Zero(d);
  VF poisoned = hn::Zero(d);  // 0 * x is NaN if x is not finite
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF value = hn::LoadU(d, x + i);
    max = hn::Max(max, hn::Abs(value));
    poisoned = hn::MulAdd(hn::Zero(d), value, poisoned);
  }
  HWY_ALIGN float largest[kLanes];
  HWY_ALIGN float bad[kLanes];
  hn::Store(max, d, largest);
  hn::Store(poisoned, d, bad);
  float result = 0.0f;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result = std::max(result, largest[lane]);
    if (!(bad[lane] == 0.0f)) return bad[lane];
  }
  for (; i < count; ++i) {
    if (!(0.0f * x[i] == 0.0f)) return 0.0f * x[i];
    result = std::max(result, std::fabs(x[i]));
  }
  return result;
}

HWY_INLINE void StoreQuantized(VF y, std::int8_t* to) {
  const DF d;
  // Before rounding, |y| may exceed 127 by a few units in the last place.
  const VF limit = hn::Set(d, cache::kQuantizedMax<std::int8_t>);
  const VF rounded = hn::Round(hn::Min(hn::Max(y, hn::Neg(limit)), limit));
  hn::StoreU(hn::DemoteTo(D8S(), hn::ConvertTo(DI(), rounded)), D8S(), to);
}

// Stores y as e4m3. |y| is at most 448, except for rounding errors. Normal results (from 2^-6 on)
// are rounded to 3 bits of mantissa, ties to even, with integer arithmetic. Smaller results are
// rounded to multiples of 2^-9 by adding 2^14.
HWY_INLINE void StoreQuantized(VF y, F8E4M3* to) {
  const DF d;
  const DU du;
  const VF magnitude = hn::Min(hn::Abs(y), hn::Set(d, cache::kQuantizedMax<F8E4M3>));
  const VU bits = hn::BitCast(du, magnitude);
  const VU odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1));
  const VU rounded = hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7ffffu));
  // The exponent bias changes from 127 to 7.
  const VU normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(du, 120u << 3));
  const VF anchored = hn::Add(magnitude, hn::Set(d, 0x1p14f));
  const VU small = hn::Sub(hn::BitCast(du, anchored), hn::BitCast(du, hn::Set(d, 0x1p14f)));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
  const VU sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(du, y)));
  const VU code = hn::Or(hn::IfThenElse(is_small, small, normal), sign);
  // Narrowed through signed words, which every target supports. The results fit in 8 bits.
  hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(DI(), code)), D8(),
             reinterpret_cast<std::uint8_t*>(to));
}

template <typename T>
float QuantizeHead(const float* HWY_RESTRICT x, std::size_t count, T* HWY_RESTRICT q) {
  const DF d;
  const float largest = LargestMagnitude(x, count);
  if (!(largest > 0.0f)) {
    std::fill(q, q + count, T{});
    return 1.0f;
  }
  const float scale = std::max(largest / cache::kQuantizedMax<T>, 0x1p-126f);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreQuantized(hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale)), q + i);
  }
  for (; i < count; ++i) q[i] = cache::QuantizeValue<T>(x[i], scale);
  return scale;
}

float QuantizeInt8(const float* x, std::size_t count, std::int8_t* q) {
  return QuantizeHead(x, count, q);
}
float QuantizeFp8(const float* x, std::size_t count, F8E4M3* q) {
  return QuantizeHead(x, count, q);
}

void NarrowBf16(const float* HWY_RESTRICT x, std::size_t count, BF16* HWY_RESTRICT to) {
  const DF d;
  const DU du;
  const hn::Rebind<std::uint16_t, DF> narrow;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF value = hn::LoadU(d, x + i);
    const VU bits = hn::BitCast(du, value);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7fffu)));
    // FromFloat converts NaN to a quiet NaN.
    const VU quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    const auto is_number = hn::RebindMask(du, hn::Eq(value, value));
    const auto words = hn::BitCast(DI(), hn::IfThenElse(is_number, rounded, quiet));
    hn::StoreU(hn::DemoteTo(narrow, words), narrow, &to[i].bits);
  }
  for (; i < count; ++i) to[i] = BF16::FromFloat(x[i]);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(QuantizeInt8);
HWY_EXPORT(QuantizeFp8);
HWY_EXPORT(NarrowBf16);

namespace internal {

float QuantizeHeadSimd(const float* x, std::size_t count, std::int8_t* q) {
  return HWY_DYNAMIC_DISPATCH(QuantizeInt8)(x, count, q);
}
float QuantizeHeadSimd(const float* x, std::size_t count, F8E4M3* q) {
  return HWY_DYNAMIC_DISPATCH(QuantizeFp8)(x, count, q);
}
void NarrowSimd(const float* x, std::size_t count, BF16* to) {
  HWY_DYNAMIC_DISPATCH(NarrowBf16)(x, count, to);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
