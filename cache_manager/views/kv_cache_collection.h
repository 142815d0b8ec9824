#pragma once

// A collection describes all layers of one layer group: the 6-D pool and the step inputs. A kernel
// launch gets the view of one layer's K or V from the collection.
//
// Place:      between the cache manager, which owns pool and step arrays, and the kernels.
// Invariants: Create has checked geometry, limits, alignment and the shape of the step inputs, so
//             views check only their own arguments.
// Threads:    immutable values.
// Lifetime:   valid while the pool and the step arrays are.

#include <array>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "cache_manager/views/kv_cache_view.h"
#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/kv_step_inputs.h"

namespace quire::cache {

// Minimum alignment of a pool and of its scales, which device allocators guarantee.
inline constexpr std::uintptr_t kPoolAlignment = 256;
// Alignment of a lookup table row, so that one or two vector loads read eight entries.
inline constexpr std::uintptr_t kLookupTableAlignment = 32;

// The addresses of a pool. `blocks` is the address of the K of layer 0 in page 0. The scales use
// the page ids of the values unless they have their own table and page count.
template <typename T, typename Scale = Unquantized>
struct KvPoolPointers {
  T* blocks = nullptr;
  std::conditional_t<std::is_const_v<T>, const Scale, Scale>* scales = nullptr;
  const std::uint32_t* scales_lookup_table = nullptr;  // [max_rows, lookup_stride]
  std::uint32_t num_scale_blocks = 0;                  // 0: equal to num_blocks
};

namespace internal {

inline absl::Status CheckExtent(absl::string_view name, std::uint32_t constant,
                                std::uint32_t value) {
  if (constant == kDynamicExtent || constant == value) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", this cache type has ", constant));
}

inline absl::Status CheckPointer(absl::string_view name, const void* pointer,
                                 std::uintptr_t alignment) {
  if (pointer == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is at 0x", absl::Hex(reinterpret_cast<std::uintptr_t>(pointer)),
                     ", it must be a multiple of ", alignment));
  }
  return absl::OkStatus();
}

// Checks that a geometry has the types and extents of a cache type, paged or continuous.
template <typename Cache>
absl::Status CheckGeometryType(const KvGeometry& geometry) {
  using Params = typename Cache::Params;
  if (geometry.dtype != Cache::kDType) {
    return absl::InvalidArgumentError(absl::StrCat("kv cache dtype is ", DTypeName(geometry.dtype),
                                                   ", this cache type has ",
                                                   DTypeName(Cache::kDType)));
  }
  if (geometry.scale_dtype != Cache::kScaleDType) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale dtype is ", DTypeName(geometry.scale_dtype), ", this cache type has ",
                     DTypeName(Cache::kScaleDType)));
  }
  QUIRE_RETURN_IF_ERROR(CheckExtent("kv_dim", Params::kKvDim, geometry.kv_dim));
  QUIRE_RETURN_IF_ERROR(CheckExtent("num_heads", Params::kNumHeads, geometry.num_heads));
  QUIRE_RETURN_IF_ERROR(CheckExtent("head_size", Params::kHeadSize, geometry.head_size));
  return CheckExtent("granularity", Cache::kGranularity, geometry.granularity);
}

// Checks the step inputs that paged and continuous collections use in the same way.
inline absl::Status CheckStepInputs(const KvStepInputs& inputs) {
  if (inputs.max_rows == 0) return absl::InvalidArgumentError("max_rows is 0");
  return CheckPointer("cache_lengths", inputs.cache_lengths, alignof(std::uint32_t));
}

inline absl::Status CheckLookupTable(const KvStepInputs& inputs, std::uint32_t page_size) {
  const std::uint32_t pages =
      inputs.max_cache_length / page_size + (inputs.max_cache_length % page_size != 0 ? 1 : 0);
  if (inputs.lookup_stride % 8 != 0 ||
      inputs.lookup_stride < std::uint64_t{pages} + kMaxTilePages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lookup_stride is ", inputs.lookup_stride, ", it must be a multiple of 8 and at least ",
        std::uint64_t{pages} + kMaxTilePages, " for ", inputs.max_cache_length, " keys"));
  }
  return CheckPointer("lookup_table", inputs.lookup_table, kLookupTableAlignment);
}

// The members that only a collection with scales has.
template <typename Cache>
struct CollectionScaleMembers {};
template <typename Cache>
requires(Cache::kQuantized) struct CollectionScaleMembers<Cache> {
  static constexpr std::uint32_t kScaleGroups = Cache::kScaleGroups;
  static constexpr std::array<std::int64_t, 6> kScalesShape{kDynamic,
                                                            Cache::Params::kKvDim,
                                                            kDynamic,
                                                            Cache::Extent(Cache::kPageSize),
                                                            Cache::Extent(Cache::Params::kNumHeads),
                                                            Cache::Extent(kScaleGroups)};
  using ScalesView = TensorView<std::remove_pointer_t<typename Cache::ScalePointer>, 6>;
};

}  // namespace internal

// The collection of PagedKVCache views over a pool [N, KV, L, P, H, D], which has scales [N, KV, L,
// P, H, S] if it is quantized (see KvGeometry).
template <typename T, typename ParamsT, std::uint32_t PageSize, typename ScaleT = Unquantized,
          std::uint32_t Granularity = 1>
class PagedKVCacheCollection : public internal::CollectionScaleMembers<
                                   PagedKVCache<T, ParamsT, PageSize, ScaleT, Granularity>> {
 public:
  using Cache = PagedKVCache<T, ParamsT, PageSize, ScaleT, Granularity>;
  using Element = typename Cache::Element;
  using Params = ParamsT;
  using Scale = ScaleT;
  using BlocksView = TensorView<T, 6>;
  static constexpr bool kQuantized = Cache::kQuantized;
  static constexpr DType kDType = Cache::kDType;
  static constexpr DType kScaleDType = Cache::kScaleDType;
  static constexpr absl::string_view kName = "paged";
  static constexpr std::array<std::int64_t, 6> kBlocksShape{kDynamic,
                                                            Params::kKvDim,
                                                            kDynamic,
                                                            Cache::Extent(PageSize),
                                                            Cache::Extent(Params::kNumHeads),
                                                            Cache::Extent(Params::kHeadSize)};

  // Returns INVALID_ARGUMENT if the geometry does not match this type or exceeds a limit, if the
  // step inputs are too small, or if `pool` lacks a pointer or has one that this type does not use.
  static absl::StatusOr<PagedKVCacheCollection> Create(const KvGeometry& geometry,
                                                       const KvPoolPointers<T, ScaleT>& pool,
                                                       const KvStepInputs& inputs);

  // Returns the K of one layer. REQUIRES: layer < num_layers().
  Cache get_key_cache(std::uint32_t layer) const { return LayerCache(0, layer); }
  // Returns the V of one layer. Absent for MLA, where the same rows are K and V.
  Cache get_value_cache(std::uint32_t layer) const requires(!ParamsT::kIsMla) {
    return LayerCache(1, layer);
  }
  std::uint32_t cache_length(std::uint32_t b) const { return layer0_.cache_length(b); }

  std::uint32_t num_layers() const { return geometry_.num_layers; }
  const KvGeometry& geometry() const { return geometry_; }
  T* blocks() const { return layer0_.blocks; }
  const std::uint32_t* cache_lengths() const { return layer0_.cache_lengths; }
  const std::uint32_t* lookup_table() const { return layer0_.lookup_table; }
  std::uint32_t max_seq_length() const { return layer0_.max_seq_length; }
  std::uint32_t max_cache_length() const { return layer0_.max_cache_length; }
  typename Cache::ScalePointer scales() const requires kQuantized { return layer0_.scales; }

  // Returns the pool as a tensor. Its first stride may exceed that of a packed tensor.
  BlocksView blocks_view() const {
    const std::int64_t row = layer0_.row_elements();
    const std::int64_t layer = row * layer0_.page_size();
    return {
        layer0_.blocks,
        {geometry_.num_blocks, geometry_.kv_dim, geometry_.num_layers, geometry_.page_size,
         geometry_.num_heads, geometry_.head_size},
        {layer0_.block_stride(), layer * geometry_.num_layers, layer, row, geometry_.head_size, 1}};
  }
  auto scales_view() const requires kQuantized {
    const std::int64_t row = layer0_.scale_row_elements();
    const std::int64_t layer = row * layer0_.page_size();
    return typename PagedKVCacheCollection::ScalesView{
        layer0_.scales,
        {layer0_.num_scale_blocks, geometry_.kv_dim, geometry_.num_layers, geometry_.page_size,
         geometry_.num_heads, layer0_.scale_groups()},
        {layer0_.scale_block_stride(), layer * geometry_.num_layers, layer, row,
         layer0_.scale_groups(), 1}};
  }
  // Return the shape {N, P, H, D} and the strides {block_stride(), H*D, D, 1} of one layer's view.
  std::array<std::int64_t, 4> kv_cache_dynamic_shape() const {
    return layer0_.blocks_view().extents;
  }
  std::array<std::int64_t, 4> kv_cache_dynamic_strides() const {
    return layer0_.blocks_view().strides;
  }
  // Return the shape {N, P, H, S} and the strides {scale_block_stride(), H*S, S, 1} of one layer's
  // scales.
  std::array<std::int64_t, 4> kv_cache_scales_dynamic_shape() const requires kQuantized {
    return layer0_.scales_view().extents;
  }
  std::array<std::int64_t, 4> kv_cache_scales_dynamic_strides() const requires kQuantized {
    return layer0_.scales_view().strides;
  }

 private:
  PagedKVCacheCollection() = default;

  Cache LayerCache(std::uint32_t kv, std::uint32_t layer) const {
    QUIRE_DCHECK(layer < geometry_.num_layers);
    Cache cache = layer0_;
    const std::int64_t rows =
        (std::int64_t{kv} * geometry_.num_layers + layer) * layer0_.page_size();
    cache.blocks += rows * layer0_.row_elements();
    if constexpr (kQuantized) cache.scales += rows * layer0_.scale_row_elements();
    return cache;
  }

  static absl::Status CheckPool(const KvGeometry& geometry, const KvPoolPointers<T, ScaleT>& pool);

  KvGeometry geometry_;
  Cache layer0_;  // K of layer 0, which begins where the pool begins
};

template <typename T, typename ParamsT, std::uint32_t PageSize, typename ScaleT,
          std::uint32_t Granularity>
absl::Status PagedKVCacheCollection<T, ParamsT, PageSize, ScaleT, Granularity>::CheckPool(
    const KvGeometry& geometry, const KvPoolPointers<T, ScaleT>& pool) {
  QUIRE_RETURN_IF_ERROR(internal::CheckPointer("blocks", pool.blocks, kPoolAlignment));
  if constexpr (kQuantized) {
    QUIRE_RETURN_IF_ERROR(internal::CheckPointer("scales", pool.scales, kPoolAlignment));
    if (pool.scales_lookup_table != nullptr) {
      QUIRE_RETURN_IF_ERROR(internal::CheckPointer("scales_lookup_table", pool.scales_lookup_table,
                                                   kLookupTableAlignment));
      KvGeometry scales = geometry;
      if (pool.num_scale_blocks != 0) scales.num_blocks = pool.num_scale_blocks;
      return scales.Validate();
    }
    if (pool.num_scale_blocks != 0 && pool.num_scale_blocks != geometry.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("num_scale_blocks is ", pool.num_scale_blocks,
                                                     ", it must be ", geometry.num_blocks,
                                                     " unless scales_lookup_table is set"));
    }
  } else if (pool.scales != nullptr || pool.scales_lookup_table != nullptr) {
    return absl::InvalidArgumentError("scales are given, but the cache is not quantized");
  }
  return absl::OkStatus();
}

template <typename T, typename ParamsT, std::uint32_t PageSize, typename ScaleT,
          std::uint32_t Granularity>
absl::StatusOr<PagedKVCacheCollection<T, ParamsT, PageSize, ScaleT, Granularity>>
PagedKVCacheCollection<T, ParamsT, PageSize, ScaleT, Granularity>::Create(
    const KvGeometry& geometry, const KvPoolPointers<T, ScaleT>& pool, const KvStepInputs& inputs) {
  QUIRE_RETURN_IF_ERROR(geometry.Validate());
  QUIRE_RETURN_IF_ERROR(internal::CheckGeometryType<Cache>(geometry));
  QUIRE_RETURN_IF_ERROR(internal::CheckExtent("page_size", PageSize, geometry.page_size));
  QUIRE_RETURN_IF_ERROR(CheckPool(geometry, pool));
  QUIRE_RETURN_IF_ERROR(internal::CheckStepInputs(inputs));
  QUIRE_RETURN_IF_ERROR(internal::CheckLookupTable(inputs, geometry.page_size));
  PagedKVCacheCollection collection;
  collection.geometry_ = geometry;
  Cache& cache = collection.layer0_;
  cache.blocks = pool.blocks;
  cache.cache_lengths = inputs.cache_lengths;
  cache.lookup_table = inputs.lookup_table;
  cache.rows_per_page = static_cast<std::uint32_t>(geometry.rows_per_block());
  if constexpr (kQuantized) {
    cache.scales = pool.scales;
    cache.scales_lookup_table = pool.scales_lookup_table;
    cache.scale_rows_per_page = static_cast<std::uint32_t>(geometry.scale_rows_per_block());
    cache.num_scale_blocks =
        pool.num_scale_blocks != 0 ? pool.num_scale_blocks : geometry.num_blocks;
  }
  cache.lookup_stride = inputs.lookup_stride;
  cache.batch_size = inputs.max_rows;
  cache.num_blocks = geometry.num_blocks;
  cache.max_seq_length = inputs.max_seq_length;
  cache.max_cache_length = inputs.max_cache_length;
  cache.max_history_length = inputs.max_history_length;
  if constexpr (Params::kNumHeads == kDynamicExtent) cache.heads.value = geometry.num_heads;
  if constexpr (Params::kHeadSize == kDynamicExtent) cache.columns.value = geometry.head_size;
  if constexpr (Granularity == kDynamicExtent) cache.group.value = geometry.granularity;
  if constexpr (PageSize == kDynamicExtent) {
    cache.page = KvPageExtent<kDynamicExtent>::FromSize(geometry.page_size);
  }
  return collection;
}

}  // namespace quire::cache
