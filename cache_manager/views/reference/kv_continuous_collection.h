#pragma once

// All layers of a cache that keeps each sequence in one block: the collection of
// ContinuousBatchingKVCache views.
//
// No request uses it. It exists because the reference API (Modular MAX) has it, and because tests
// compare the paged cache with it.
//
// Place, invariants, threads and lifetime are those of kv_cache_collection.h.

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/kv_step_inputs.h"
#include "cache_manager/views/reference/kv_continuous_view.h"

namespace quire::cache {

// Pool [N, KV, L, max_block_tokens, H, D] with one block per sequence. geometry.page_size is
// max_block_tokens and may be any number.
template <typename T, typename ParamsT>
class ContinuousBatchingKVCacheCollection {
 public:
  using Cache = ContinuousBatchingKVCache<T, ParamsT>;
  using Element = typename Cache::Element;
  using Params = ParamsT;
  using Scale = Unquantized;
  using BlocksView = TensorView<T, 6>;
  static constexpr bool kQuantized = false;
  static constexpr DType kDType = Cache::kDType;
  static constexpr DType kScaleDType = DType::kInvalid;
  static constexpr absl::string_view kName = "continuous_batching";
  static constexpr std::array<std::int64_t, 6> kBlocksShape{kDynamic,
                                                            Params::kKvDim,
                                                            kDynamic,
                                                            kDynamic,
                                                            Cache::Extent(Params::kNumHeads),
                                                            Cache::Extent(Params::kHeadSize)};

  // inputs.lookup_table is [max_rows] block ids. Returns INVALID_ARGUMENT in the same cases as
  // PagedKVCacheCollection::Create.
  static absl::StatusOr<ContinuousBatchingKVCacheCollection> Create(const KvGeometry& geometry,
                                                                    T* blocks,
                                                                    const KvStepInputs& inputs);

  Cache get_key_cache(std::uint32_t layer) const { return LayerCache(0, layer); }
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

  BlocksView blocks_view() const {
    const std::int64_t row = layer0_.row_elements();
    const std::int64_t layer = row * geometry_.page_size;
    return {
        layer0_.blocks,
        {geometry_.num_blocks, geometry_.kv_dim, geometry_.num_layers, geometry_.page_size,
         geometry_.num_heads, geometry_.head_size},
        {layer0_.block_stride(), layer * geometry_.num_layers, layer, row, geometry_.head_size, 1}};
  }
  // Return the shape {N, max_block_tokens, H, D} and the strides of one layer's view.
  std::array<std::int64_t, 4> kv_cache_dynamic_shape() const {
    return layer0_.blocks_view().extents;
  }
  std::array<std::int64_t, 4> kv_cache_dynamic_strides() const {
    return layer0_.blocks_view().strides;
  }

 private:
  ContinuousBatchingKVCacheCollection() = default;

  Cache LayerCache(std::uint32_t kv, std::uint32_t layer) const {
    QUIRE_DCHECK(layer < geometry_.num_layers);
    Cache cache = layer0_;
    cache.blocks += (std::int64_t{kv} * geometry_.num_layers + layer) * geometry_.page_size *
                    layer0_.row_elements();
    return cache;
  }

  KvGeometry geometry_;
  Cache layer0_;
};

template <typename T, typename ParamsT>
absl::StatusOr<ContinuousBatchingKVCacheCollection<T, ParamsT>>
ContinuousBatchingKVCacheCollection<T, ParamsT>::Create(const KvGeometry& geometry, T* blocks,
                                                        const KvStepInputs& inputs) {
  QUIRE_RETURN_IF_ERROR(geometry.ValidateContinuous());
  QUIRE_RETURN_IF_ERROR(internal::CheckGeometryType<Cache>(geometry));
  QUIRE_RETURN_IF_ERROR(internal::CheckPointer("blocks", blocks, kPoolAlignment));
  QUIRE_RETURN_IF_ERROR(internal::CheckStepInputs(inputs));
  QUIRE_RETURN_IF_ERROR(
      internal::CheckPointer("lookup_table", inputs.lookup_table, alignof(std::uint32_t)));
  if (inputs.lookup_stride != 1) {
    return absl::InvalidArgumentError(absl::StrCat("lookup_stride is ", inputs.lookup_stride,
                                                   ", one block per sequence needs 1"));
  }
  if (inputs.max_cache_length > geometry.page_size) {
    return absl::InvalidArgumentError(absl::StrCat("max_cache_length is ", inputs.max_cache_length,
                                                   ", a block holds ", geometry.page_size,
                                                   " tokens"));
  }
  ContinuousBatchingKVCacheCollection collection;
  collection.geometry_ = geometry;
  Cache& cache = collection.layer0_;
  cache.blocks = blocks;
  cache.cache_lengths = inputs.cache_lengths;
  cache.lookup_table = inputs.lookup_table;
  cache.rows_per_block = static_cast<std::uint32_t>(geometry.rows_per_block());
  cache.max_block_tokens = geometry.page_size;
  cache.batch_size = inputs.max_rows;
  cache.num_blocks = geometry.num_blocks;
  cache.max_seq_length = inputs.max_seq_length;
  cache.max_cache_length = inputs.max_cache_length;
  cache.max_history_length = inputs.max_history_length;
  if constexpr (Params::kNumHeads == kDynamicExtent) cache.heads.value = geometry.num_heads;
  if constexpr (Params::kHeadSize == kDynamicExtent) cache.columns.value = geometry.head_size;
  return collection;
}

}  // namespace quire::cache
