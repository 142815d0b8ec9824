#pragma once

// Pools for tests of tensor maps.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::kernels::cuda::testing {

// A pool of one layer group with distinct elements between guards, and two sequences over shuffled
// pages.
template <typename C>
struct Pool {
  using Element = typename C::Cache::Element;
  cache::KvGeometry geometry;
  std::size_t guard;
  cache::testing::AlignedArray<Element> memory;
  cache::testing::AlignedArray<float> scales;
  cache::testing::StepArrays arrays;
  C collection;

  // REQUIRES: `geometry` belongs to the collection.
  static Pool Make(const cache::KvGeometry& geometry) {
    const std::size_t guard = cache::kGuardRows * static_cast<std::size_t>(geometry.row_elements());
    cache::testing::AlignedArray<Element> memory(2 * guard +
                                                 cache::testing::PoolElements(geometry));
    auto* const bytes = reinterpret_cast<std::uint8_t*>(memory.data());
    for (std::size_t i = 0; i < memory.size() * sizeof(Element); ++i) {
      bytes[i] = static_cast<std::uint8_t>((i * 2654435761u) >> 13) & 0x77;  // no NaN in any type
    }
    cache::testing::AlignedArray<float> scales(
        std::max<std::size_t>(cache::testing::PoolScales(geometry), 1));
    std::iota(scales.begin(), scales.end(), 1.0f);
    const std::uint32_t columns = (geometry.num_blocks - 1) / 2;
    cache::testing::StepArrays arrays(2, cache::testing::LookupStride(columns));
    for (std::uint32_t b = 0; b < 2; ++b) {
      arrays.SetLength(b, columns * geometry.page_size - 3);
      for (std::uint32_t c = 0; c < columns; ++c) {
        arrays.page(b, c) = 1 + (c * 5 + 2 + b * columns) % (2 * columns);
      }
    }
    cache::KvPoolPointers<Element, typename C::Cache::Scale> pointers{};
    pointers.blocks = memory.data() + guard;
    if constexpr (C::Cache::kQuantized) pointers.scales = scales.data();
    auto collection = C::Create(geometry, pointers, arrays.inputs);
    QUIRE_CHECK(collection.ok());
    return {geometry,          guard,
            std::move(memory), std::move(scales),
            std::move(arrays), *std::move(collection)};
  }
};

template <typename T, typename Params, std::uint32_t P, typename Scale = Unquantized,
          std::uint32_t G = 1>
using Paged = cache::PagedKVCacheCollection<T, Params, P, Scale, G>;
template <typename T>
using DynamicPaged = Paged<T, KvParams, cache::kDynamicExtent>;

}  // namespace quire::kernels::cuda::testing
