#pragma once

// A view of a cache that keeps each sequence in one block of consecutive tokens. It is never
// quantized and takes no part in prefix caching.
//
// No request uses it. It exists because the reference API (Modular MAX) has it, and because tests
// compare the paged cache with it.
//
//   row(b, t)           = lut[b] * R + t        R = rows between two blocks of one view
//   element(b, t, h, d) = base + row * H*D + h*D + d
//
// Place, invariants, threads, lifetime and the order of arguments are those of kv_cache_view.h.
// Block 0 is the null block: free batch rows name it, and stores through it write nothing.

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/host_device.h"
#include "base/tensor_view.h"
#include "base/vec.h"
#include "cache_manager/views/kv_cache_view.h"
#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/kv_row_indices.h"
#include "cache_manager/views/kv_vector_access.h"

namespace quire::cache {

// The K or V of one layer, with one block of max_block_tokens tokens per sequence.
template <typename T, typename ParamsT>
struct ContinuousBatchingKVCache {
  using Element = std::remove_const_t<T>;
  using Params = ParamsT;
  using Scale = Unquantized;
  using DeviceType = ContinuousBatchingKVCache;
  static constexpr bool kQuantized = false;
  static constexpr bool kRopeAware = false;
  static constexpr bool kWritable = !std::is_const_v<T>;
  static constexpr DType kDType = kDTypeOf<Element>;
  static constexpr DType kScaleDType = DType::kInvalid;
  static constexpr std::uint32_t kPageSize = 0;
  static constexpr std::uint32_t kGranularity = 1;
  static constexpr std::uint32_t kHeadSize = Params::kHeadSize;

  static_assert(KvElement<Element>);
  static_assert(Params::kRopeSize == 0, "rope-aware rows are paged only");

  template <int Width>
  static constexpr bool kVectorFits = KvWidth<Width> &&
                                      (kHeadSize == kDynamicExtent || kHeadSize % Width == 0);

  template <std::uint32_t Tile>
  static constexpr bool kPointerTile = Tile >= 1;

  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta>
  static constexpr bool kRowTile = ValidTile(BN, 0, PairCta) && Alignment >= 1;

  static constexpr std::int64_t Extent(std::uint32_t e) {
    return e == kDynamicExtent ? kDynamic : e;
  }
  static constexpr std::array<std::int64_t, 4> kBlocksShape{
      kDynamic, kDynamic, Extent(Params::kNumHeads), Extent(kHeadSize)};
  using BlocksView = TensorView<T, 4>;
  using CacheLengthsView = TensorView<const std::uint32_t, 1>;
  using LookupTableView = TensorView<const std::uint32_t, 1>;

  T* blocks = nullptr;                           // view base, [N, max_block_tokens, H, D]
  const std::uint32_t* cache_lengths = nullptr;  // [batch_size]
  const std::uint32_t* lookup_table = nullptr;   // [batch_size] block ids
  std::uint32_t rows_per_block = 0;              // R
  std::uint32_t max_block_tokens = 0;
  std::uint32_t batch_size = 0;
  std::uint32_t num_blocks = 0;  // N
  std::uint32_t max_seq_length = 0;
  std::uint32_t max_cache_length = 0;
  std::uint32_t max_history_length = 0;
  KvExtent<Params::kNumHeads> heads{};
  KvExtent<Params::kHeadSize> columns{};

  // Returns "ContinuousBatchingKVCache<f32,h2,d64>", with ",mla" for an MLA cache.
  static std::string type_name() {
    return absl::StrCat("ContinuousBatchingKVCache<", DTypeName(kDType), ",h",
                        KvExtentName(Params::kNumHeads), ",d", KvExtentName(kHeadSize),
                        Params::kIsMla ? ",mla>" : ">");
  }

  QUIRE_HOST_DEVICE constexpr std::uint32_t num_heads() const { return heads.get(); }
  QUIRE_HOST_DEVICE constexpr std::uint32_t head_size() const { return columns.get(); }
  QUIRE_HOST_DEVICE constexpr std::int64_t row_elements() const {
    return std::int64_t{num_heads()} * head_size();
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t row_stride() const { return rows_per_block; }
  QUIRE_HOST_DEVICE constexpr std::int64_t block_stride() const {
    return std::int64_t{rows_per_block} * row_elements();
  }
  QUIRE_HOST_DEVICE static constexpr std::uint32_t max_tile_size() { return kNoTileLimit; }

  QUIRE_HOST_DEVICE T* blocks_raw_ptr() const { return blocks; }
  BlocksView blocks_view() const {
    return {blocks,
            {num_blocks, max_block_tokens, num_heads(), head_size()},
            {block_stride(), row_elements(), head_size(), 1}};
  }
  CacheLengthsView cache_lengths_nd() const {
    return CacheLengthsView::RowMajor(cache_lengths, {batch_size});
  }
  LookupTableView lookup_table_nd() const {
    return LookupTableView::RowMajor(lookup_table, {batch_size});
  }

  // Returns the number of tokens of batch row b that were cached before this step.
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    QUIRE_DCHECK(b < batch_size);
    return cache_lengths[b];
  }
  QUIRE_HOST_DEVICE std::uint32_t max_prompt_length() const { return max_seq_length; }
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return max_cache_length; }
  QUIRE_HOST_DEVICE bool empty_cache() const { return max_history_length == 0; }

  // REQUIRES: b < batch_size, t < max_block_tokens.
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    QUIRE_DCHECK(b < batch_size && t < max_block_tokens);
    return lookup_table[b] * rows_per_block + t;
  }
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const {
    return (std::int64_t{num_blocks} - 1) * rows_per_block + max_block_tokens;
  }
  QUIRE_HOST_DEVICE std::uint32_t col_idx(std::uint32_t h) const {
    QUIRE_DCHECK(h < num_heads());
    return h * head_size();
  }
  // Returns the encoded index, or -1 if it is negative. An encoded index of this cache is a row.
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    return encoded < 0 ? -1 : encoded;
  }
  // Returns the row of token t, or -1 if t is negative or past the block, or if the sequence has no
  // block.
  QUIRE_HOST_DEVICE std::int32_t sparse_tma_row(std::uint32_t b, std::int32_t t) const {
    QUIRE_DCHECK(b < batch_size);
    const auto at = static_cast<std::uint32_t>(t);
    if (t < 0 || at >= max_block_tokens) return -1;
    if (lookup_table[b] == kNullPage || lookup_table[b] >= num_blocks) return -1;
    return static_cast<std::int32_t>(row_idx(b, at));
  }
  // Returns (row, 0), because rows are numbered through the whole view.
  QUIRE_HOST_DEVICE KvTmaCoords kv_tma_coords(std::uint32_t b, std::uint32_t t) const {
    return {row_idx(b, t), 0};
  }

  // Returns a pointer to element (b, t, h, d). The Tile rows from t on are H*D elements apart.
  // REQUIRES: t + Tile <= max_block_tokens.
  template <std::uint32_t Tile>
  requires kPointerTile<Tile> QUIRE_HOST_DEVICE T* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                                   std::uint32_t h,
                                                                   std::uint32_t d = 0) const {
    QUIRE_DCHECK(t + Tile <= max_block_tokens);
    return ElementAt(row_idx(b, t), h, d);
  }

  // Returns a table of one entry, the row of `base`.
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(kRowTile<BN, Alignment, PairCta>)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, 0, PairCta, IsLeader> populate(std::uint32_t b,
                                                                           std::uint32_t base)
  const {
    QUIRE_DCHECK(base % Alignment == 0);
    return {{row_idx(b, base)}};
  }

  // Loads Width elements from (b, t, h, d) on and converts them to Out. REQUIRES: the vector is
  // within its head.
  template <int Width, typename Out = Element>
  requires(kVectorFits<Width>&& KvElement<Out>)
      QUIRE_HOST_DEVICE Vec<Out, Width> load(std::uint32_t b, std::uint32_t h, std::uint32_t t,
                                             std::uint32_t d)
  const {
    QUIRE_DCHECK(d + Width <= head_size());
    return ConvertVector<Out>(LoadVector<Width>(ElementAt(row_idx(b, t), h, d)));
  }
  // Stores Width elements. Writes nothing if the sequence has no block.
  template <int Width>
  requires(kWritable&& KvWidth<Width>)
      QUIRE_HOST_DEVICE void store(std::uint32_t b, std::uint32_t h, std::uint32_t t,
                                   std::uint32_t d, const Vec<Element, Width>& values) const {
    QUIRE_DCHECK(d + Width <= head_size());
    const std::uint32_t row = row_idx(b, t);
    if (lookup_table[b] == kNullPage) return;
    StoreVector<Width>(ElementAt(row, h, d), values);
  }

 private:
  QUIRE_HOST_DEVICE T* ElementAt(std::uint32_t row, std::uint32_t h, std::uint32_t d) const {
    QUIRE_DCHECK(h < num_heads() && d < head_size());
    return blocks + (std::int64_t{row} * row_elements() + std::int64_t{h} * head_size() + d);
  }
};

}  // namespace quire::cache
