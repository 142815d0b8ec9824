#pragma once

// Loads and stores of vectors at any address. On the device an aligned vector is one access. All
// other vectors are accessed lane by lane, which host compilers turn into vector moves.

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/host_device.h"
#include "base/vec.h"

namespace quire::cache {

// The element types of a cache.
template <typename T>
concept KvElement = std::same_as<T, float> || std::same_as<T, BF16> || std::same_as<T, F16> ||
    std::same_as<T, F8E4M3> || std::same_as<T, std::int8_t>;

// The types that a load may convert to.
template <typename T>
concept KvFloat = KvElement<T> && !std::same_as<T, std::int8_t>;

// The widths of Vec.
template <int Width>
concept KvWidth = Width == 1 || Width == 2 || Width == 4 || Width == 8 || Width == 16;

template <int Width, typename T>
QUIRE_HOST_DEVICE inline Vec<std::remove_const_t<T>, Width> LoadVector(T* from) {
  using Vector = Vec<std::remove_const_t<T>, Width>;
#ifdef __CUDA_ARCH__
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(Vector) == 0) {
    return *reinterpret_cast<const Vector*>(from);
  }
#endif
  Vector vector;
  for (int i = 0; i < Width; ++i) vector.lane[i] = from[i];
  return vector;
}

template <int Width, typename T>
QUIRE_HOST_DEVICE inline void StoreVector(T* to, const Vec<T, Width>& vector) {
#ifdef __CUDA_ARCH__
  if (reinterpret_cast<std::uintptr_t>(to) % alignof(Vec<T, Width>) == 0) {
    *reinterpret_cast<Vec<T, Width>*>(to) = vector;
    return;
  }
#endif
  for (int i = 0; i < Width; ++i) to[i] = vector.lane[i];
}

// Converts each lane to f32, multiplies it by `scale` and rounds it to Out.
template <typename Out, int Width, typename In>
QUIRE_HOST_DEVICE inline Vec<Out, Width> ScaleVector(const Vec<In, Width>& vector, float scale) {
  Vec<Out, Width> out;
  for (int i = 0; i < Width; ++i) {
    out.lane[i] = FromFloat<Out>(ToFloat(vector.lane[i]) * scale);
  }
  return out;
}

// Converts each lane to f32 and rounds it to Out. Equal types keep their bits.
template <typename Out, int Width, typename In>
QUIRE_HOST_DEVICE inline Vec<Out, Width> ConvertVector(const Vec<In, Width>& vector) {
  if constexpr (std::is_same_v<Out, In>) {
    return vector;
  } else {
    Vec<Out, Width> out;
    for (int i = 0; i < Width; ++i) out.lane[i] = FromFloat<Out>(ToFloat(vector.lane[i]));
    return out;
  }
}

}  // namespace quire::cache
