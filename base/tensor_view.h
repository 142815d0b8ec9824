#pragma once

// A pointer with extents and strides, counted in elements. It owns nothing. It has a subset of
// mdspan's interface (extent, stride, call operator), so that the standard type can replace it.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace quire {

// Marks an extent or stride that is only known at run time.
inline constexpr std::int64_t kDynamic = -1;

template <typename T, int Rank>
struct TensorView {
  T* pointer = nullptr;
  std::array<std::int64_t, Rank> extents{};
  std::array<std::int64_t, Rank> strides{};  // elements

  // Returns a contiguous view whose last index varies fastest.
  static constexpr TensorView RowMajor(T* pointer, const std::array<std::int64_t, Rank>& extents) {
    TensorView view{pointer, extents, {}};
    std::int64_t stride = 1;
    for (int i = Rank - 1; i >= 0; --i) {
      view.strides[static_cast<std::size_t>(i)] = stride;
      stride *= extents[static_cast<std::size_t>(i)];
    }
    return view;
  }

  constexpr T* data() const { return pointer; }
  constexpr std::int64_t extent(int i) const { return extents[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t stride(int i) const { return strides[static_cast<std::size_t>(i)]; }

  template <typename... Index>
  requires(sizeof...(Index) == Rank) constexpr T& operator()(Index... index) const {
    const std::array<std::int64_t, Rank> at{static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < Rank; ++i) {
      QUIRE_DCHECK(at[i] >= 0 && at[i] < extents[i]);
      offset += at[i] * strides[i];
    }
    return pointer[offset];
  }
};

}  // namespace quire
