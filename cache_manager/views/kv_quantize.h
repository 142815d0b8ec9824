#pragma once

// Quantizes and dequantizes one group of a cache row. All backends compute the same bits: division
// is IEEE, and rounding is to nearest, ties to even.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/host_device.h"

namespace quire::cache {

// The largest magnitude of an element.
template <typename Q>
inline constexpr float kQuantizedMax = 0;
template <>
inline constexpr float kQuantizedMax<F8E4M3> = 448.0f;
template <>
inline constexpr float kQuantizedMax<std::int8_t> = 127.0f;

struct GroupScale {
  float scale = 1.0f;
  // False if the group contained an infinity or NaN and was stored as zeros. The caller sets the
  // non-finite flag of the row.
  bool finite = true;
};

// Returns x / scale rounded to nearest, ties to even, and saturated to +-kQuantizedMax.
template <typename Q>
QUIRE_HOST_DEVICE inline Q QuantizeValue(float x, float scale) {
  const float y = x / scale;
  if constexpr (std::is_same_v<Q, std::int8_t>) {
    const float limit = kQuantizedMax<Q>;
    const float rounded = rintf(y);
    return static_cast<std::int8_t>(rounded > limit ? limit
                                                    : (rounded < -limit ? -limit : rounded));
  } else {
    return FromFloat<Q>(y);
  }
}

// Sets q[0, count) = x[0, count) / scale with scale = max(max |x| / kQuantizedMax, 2^-126), or 1 if
// all are zero. A group that is not finite becomes zeros with scale 1. A magnitude within two ulps
// of the largest f32 may be dequantized to infinity, because the scale is rounded.
template <typename Q>
QUIRE_HOST_DEVICE inline GroupScale QuantizeGroup(const float* x, std::uint32_t count, Q* q) {
  float amax = 0.0f;
  bool finite = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    const float magnitude = fabsf(x[i]);
    if (!(magnitude <= 3.402823466e38f)) finite = false;
    if (magnitude > amax) amax = magnitude;
  }
  if (!finite || amax == 0.0f) {
    for (std::uint32_t i = 0; i < count; ++i) q[i] = Q{};
    return {1.0f, finite};
  }
  const float scale = fmaxf(amax / kQuantizedMax<Q>, 0x1p-126f);
  for (std::uint32_t i = 0; i < count; ++i) q[i] = QuantizeValue<Q>(x[i], scale);
  return {scale, true};
}

template <typename Q>
QUIRE_HOST_DEVICE inline float DequantizeValue(Q q, float scale) {
  return ToFloat(q) * scale;
}

}  // namespace quire::cache
