#pragma once

// Concepts that list the members of caches, collections and operands that kernels may use,
// independent of the memory layout.

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/tensor_view.h"
#include "base/vec.h"
#include "cache_manager/views/kv_cache_view.h"
#include "cache_manager/views/kv_row_indices.h"

namespace quire::cache {

// A type that is passed by value as a kernel argument.
template <typename T>
concept KvDevicePassable = std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T> &&
                           std::is_standard_layout_v<T> && std::is_aggregate_v<T> &&
                           sizeof(T) <= 96;

namespace internal {

// Rope-aware rows have no `load`, because a vector could contain content and rope values. Read-only
// views have no `store`.
template <typename C>
concept HasLoad = requires(const C& c) {
  {c.template load<1>(0u, 0u, 0u, 0u)};
  { c.template load<1, BF16>(0u, 0u, 0u, 0u) } -> std::same_as<Vec<BF16, 1>>;
}
|| C::kRopeAware;
template <typename C>
concept HasStore = requires(const C& c, Vec<typename C::Element, 1> v) {
  { c.template store<1>(0u, 0u, 0u, 0u, v) } -> std::same_as<void>;
}
|| !C::kWritable;

}  // namespace internal

// The K or V of one layer.
template <typename C>
concept KVCacheT = KvDevicePassable<C> && internal::HasLoad<C> && internal::HasStore<C> &&
    requires(const C& c, std::uint32_t u, std::int32_t i) {
  typename C::Element;
  typename C::Params;
  typename C::Scale;
  requires std::same_as<typename C::DeviceType, C>;
  { C::kPageSize } -> std::convertible_to<std::uint32_t>;
  { C::kQuantized } -> std::convertible_to<bool>;
  { C::kGranularity } -> std::convertible_to<std::uint32_t>;
  { C::type_name() } -> std::same_as<std::string>;
  { c.max_tile_size() } -> std::same_as<std::uint32_t>;
  { c.cache_lengths_nd() } -> std::same_as<TensorView<const std::uint32_t, 1>>;
  { c.cache_length(u) } -> std::same_as<std::uint32_t>;
  { c.max_prompt_length() } -> std::same_as<std::uint32_t>;
  { c.max_context_length() } -> std::same_as<std::uint32_t>;
  { c.empty_cache() } -> std::same_as<bool>;
  { c.row_idx(u, u) } -> std::same_as<std::uint32_t>;
  { c.row_stride() } -> std::same_as<std::uint32_t>;
  { c.num_kv_rows() } -> std::same_as<std::int64_t>;
  { c.get_tma_row(i) } -> std::same_as<std::int32_t>;
  { c.sparse_tma_row(u, i) } -> std::same_as<std::int32_t>;
  { c.kv_tma_coords(u, u) } -> std::same_as<KvTmaCoords>;
  { c.col_idx(u) } -> std::same_as<std::uint32_t>;
  { *c.template block_paged_ptr<1>(u, u, u, u) } -> std::convertible_to<typename C::Element>;
  {
    c.template populate<64, 64>(u, u)
    } -> std::same_as<PagedRowIndices<64, C::kPageSize, false, true>>;
};

// A cache whose elements have scales.
template <typename C>
concept QuantizedKVCacheT = KVCacheT<C> && C::kQuantized && requires(const C& c, std::uint32_t u) {
  { c.template load_scale<1>(u, u, u, u) } -> std::same_as<Vec<typename C::Scale, 1>>;
  { c.template load_quantized<1>(u, u, u, u) } -> std::same_as<Vec<typename C::Element, 1>>;
  { *c.scales_block_paged_ptr(u, u, u, u) } -> std::convertible_to<typename C::Scale>;
  { *c.scales_raw_ptr() } -> std::convertible_to<typename C::Scale>;
  { c.scale_row_idx(u, u) } -> std::same_as<std::uint32_t>;
  { c.num_scale_rows() } -> std::same_as<std::int64_t>;
  { C::kScaleGroups } -> std::convertible_to<std::uint32_t>;
};

// A cache whose rows contain one-byte content followed by BF16 rope values.
template <typename C>
concept RopeAwareKVCacheT = KVCacheT<C> && C::kRopeAware && requires(const C& c, std::uint32_t u) {
  { c.template load_content<8>(u, u, u) } -> std::same_as<Vec<float, 8>>;
  { c.template load_rope<8>(u, u, u) } -> std::same_as<Vec<BF16, 8>>;
};

// All layers of one group.
template <typename X>
concept KVCollectionT = std::is_trivially_copyable_v<X> && KVCacheT<typename X::Cache> &&
    requires(const X& x, std::uint32_t u) {
  { X::kName } -> std::convertible_to<absl::string_view>;
  { x.get_key_cache(u) } -> std::same_as<typename X::Cache>;
  { x.cache_length(u) } -> std::same_as<std::uint32_t>;
  requires X::Params::kIsMla != requires {
    x.get_value_cache(u);
  };
};

// An operand of attention (reference/kv_mha_operand.h).
template <typename O>
concept MHAOperand = KvDevicePassable<O> && requires(const O& o, std::uint32_t u, std::int32_t i) {
  typename O::Element;
  typename O::Scale;
  requires std::same_as<typename O::DeviceType, O>;
  { O::kPageSize } -> std::convertible_to<std::uint32_t>;
  { O::kQuantized } -> std::convertible_to<bool>;
  { O::kGranularity } -> std::convertible_to<std::uint32_t>;
  { O::kLengthIncludesNew } -> std::convertible_to<bool>;
  { O::type_name() } -> std::same_as<std::string>;
  { o.template block_paged_ptr<1>(u, u, u, u) } -> std::same_as<const typename O::Element*>;
  { o.row_idx(u, u) } -> std::same_as<std::uint32_t>;
  { o.num_kv_rows() } -> std::same_as<std::int64_t>;
  { o.cache_length(u) } -> std::same_as<std::uint32_t>;
  { o.max_context_length() } -> std::same_as<std::uint32_t>;
  { o.get_tma_row(i) } -> std::same_as<std::int32_t>;
  {
    o.template populate<64, 64>(u, u)
    } -> std::same_as<PagedRowIndices<64, O::kPageSize, false, true>>;
};

}  // namespace quire::cache
