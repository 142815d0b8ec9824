#pragma once

// N values of one type that one aligned load or store moves. The reference API (Modular MAX) calls
// this type SIMD[dtype, width].

#include <cstddef>

#include "base/host_device.h"

namespace quire {

template <typename T, int N>
struct alignas(sizeof(T) * N <= 32 ? sizeof(T) * N : 32) Vec {
  static_assert(N == 1 || N == 2 || N == 4 || N == 8 || N == 16);
  T lane[N];

  QUIRE_HOST_DEVICE constexpr T& operator[](int i) { return lane[i]; }
  QUIRE_HOST_DEVICE constexpr const T& operator[](int i) const { return lane[i]; }
  friend constexpr bool operator==(const Vec&, const Vec&) = default;
};

}  // namespace quire
