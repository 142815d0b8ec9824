#pragma once

// Views of a paged KV cache: small values through which kernels and tests read and write the K or V
// of one layer. No other code computes addresses in the cache. With P, H, D, S and G of KvGeometry:
//
//   row(b, t)           = lut[b][t / P] * R + t mod P
//   element(b, t, h, d) = base + row * H*D + h*D + d
//   scale(b, t, h, d)   = scale base + scale row * H*S + h*S + d / G
//
// Order of arguments. All arguments are std::uint32_t, so the compiler does not detect a swap. The
// members have the two orders of the reference API (Modular MAX), whose parameter names are:
//   (b, t, h, d) = (batch_idx, tok_idx or start_tok_idx, head_idx, head_dim_idx)
//       row_idx, page_id, kv_tma_coords, populate, block_paged_ptr, scales_block_paged_ptr,
//       load_content, load_rope, store_rope
//   (b, h, t, d) = (bs, head_idx, tok_idx, head_dim_idx)
//       load, store, load_quantized, load_scale, store_scale
// A member that has no head or no column leaves that argument out.
//
// Place:      below the cache manager and all kernels. Knows memory, not ownership or page states.
// Invariants: R is the distance in rows between two consecutive pages of one view. R is a run-time
//             value, because it depends on the number of layers of the 6-D pool. Element offsets
//             are int64. Page 0 is the null page: loads through it read zeros, stores write
//             nothing.
// Threads:    immutable values; concurrent stores to different rows are independent.
// Lifetime:   a view is valid while its pool, lookup table and lengths are.
//
// An extent (heads, head size, page size, granularity) is a constant or a field, see KvExtent. A
// static view converts to a dynamic one. A requires clause removes each member that a cache type
// does not support.

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
#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/kv_row_indices.h"
#include "cache_manager/views/kv_vector_access.h"

namespace quire::cache {

// The coordinates of a token in a tensor map that is addressed by page.
struct KvTmaCoords {
  std::uint32_t row = 0;  // inside the page
  std::uint32_t page = 0;
  friend constexpr bool operator==(const KvTmaCoords&, const KvTmaCoords&) = default;
};

// Returns the extent as type_name() writes it, "?" for a run-time field.
inline std::string KvExtentName(std::uint32_t extent) {
  return extent == kDynamicExtent ? std::string("?") : absl::StrCat(extent);
}

// The members that only a cache with scales has.
template <typename T, std::uint32_t HeadSize, typename Scale, std::uint32_t Granularity>
struct KvScaleMembers {
  static_assert(std::is_same_v<Scale, float>, "scales are f32");
  static_assert(Granularity >= 1);
  // S = ceil(D / G).
  static constexpr std::uint32_t kScaleGroups =
      HeadSize == kDynamicExtent || Granularity == kDynamicExtent
          ? kDynamicExtent
          : (HeadSize + Granularity - 1) / Granularity;
  using ScalesView = TensorView<std::conditional_t<std::is_const_v<T>, const Scale, Scale>, 4>;
};
template <typename T, std::uint32_t HeadSize, std::uint32_t Granularity>
struct KvScaleMembers<T, HeadSize, Unquantized, Granularity> {
  static_assert(Granularity == 1, "a cache without scales has granularity 1");
};

// The K or V of one layer, in pages of P tokens that are found through a lookup table. A read-only
// view has a const T. PageSize, heads and head size may be kDynamicExtent. R, the table width and
// counts are always fields.
template <typename T, typename ParamsT, std::uint32_t PageSize, typename ScaleT = Unquantized,
          std::uint32_t Granularity = 1>
struct PagedKVCache : KvScaleMembers<T, ParamsT::kHeadSize, ScaleT, Granularity> {
  using Element = std::remove_const_t<T>;
  using Params = ParamsT;
  using Scale = ScaleT;
  using DeviceType = PagedKVCache;
  static constexpr bool kQuantized = !std::is_same_v<Scale, Unquantized>;
  static constexpr bool kRopeAware = Params::kRopeSize > 0;
  static constexpr bool kWritable = !std::is_const_v<T>;
  static constexpr DType kDType = kDTypeOf<Element>;
  static constexpr DType kScaleDType = kDTypeOf<Scale>;
  static constexpr std::uint32_t kPageSize = PageSize;
  static constexpr std::uint32_t kGranularity = Granularity;
  static constexpr std::uint32_t kHeadSize = Params::kHeadSize;

  static_assert(KvElement<Element>);
  static_assert(PageSize == kDynamicExtent || PageSize == 16 || PageSize == 32 || PageSize == 64 ||
                PageSize == 128);
  static_assert(!kQuantized || sizeof(Element) == 1, "only one-byte elements have scales");
  static_assert(!kRopeAware || sizeof(Element) == 1, "rope-aware content has one-byte elements");

  // True if every vector of Width elements, at a multiple of Width, is within one head and one
  // scale group.
  template <int Width>
  static constexpr bool kVectorFits = KvWidth<Width> &&
                                      (kHeadSize == kDynamicExtent || kHeadSize % Width == 0) &&
                                      (!kQuantized || Granularity == kDynamicExtent ||
                                       Granularity % Width == 0);

  // True if Tile rows that start at a multiple of Tile are on one page.
  template <std::uint32_t Tile>
  static constexpr bool kPointerTile = Tile >= 1 && (PageSize == kDynamicExtent ||
                                                     (Tile <= PageSize && PageSize % Tile == 0));

  // True if populate supports the tile.
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta>
  static constexpr bool kRowTile = ValidTile(BN, PageSize, PairCta) &&
                                   ValidTileAlignment(BN, PageSize, Alignment);

  // True if this view converts to the view type with these extents. False for this type itself.
  template <typename U, std::uint32_t Heads, std::uint32_t Columns, std::uint32_t Pages,
            std::uint32_t Group>
  static constexpr bool kIsWiderView =
      (std::is_same_v<U, T> || std::is_same_v<U, const T>)&&(Heads == Params::kNumHeads ||
                                                             Heads == kDynamicExtent) &&
      (Columns == kHeadSize || Columns == kDynamicExtent) &&
      (Pages == PageSize || Pages == kDynamicExtent) &&
      (Group == Granularity || (Group == kDynamicExtent && kQuantized)) &&
      !(std::is_same_v<U, T> && Heads == Params::kNumHeads && Columns == kHeadSize &&
        Pages == PageSize && Group == Granularity);

  static constexpr std::int64_t Extent(std::uint32_t e) {
    return e == kDynamicExtent ? kDynamic : e;
  }
  static constexpr std::array<std::int64_t, 4> kBlocksShape{
      kDynamic, Extent(PageSize), Extent(Params::kNumHeads), Extent(kHeadSize)};
  static constexpr std::array<std::int64_t, 4> kBlocksStrides{
      kDynamic,
      Params::kNumHeads == kDynamicExtent || kHeadSize == kDynamicExtent
          ? kDynamic
          : std::int64_t{Params::kNumHeads} * kHeadSize,
      Extent(kHeadSize), 1};
  using BlocksView = TensorView<T, 4>;
  using CacheLengthsView = TensorView<const std::uint32_t, 1>;
  using LookupTableView = TensorView<const std::uint32_t, 2>;
  using ScalePointer = std::conditional_t<std::is_const_v<T>, const Scale, Scale>*;

  T* blocks = nullptr;                                 // view base, seen as [N, P, H, D]
  const std::uint32_t* cache_lengths = nullptr;        // [batch_size]
  const std::uint32_t* lookup_table = nullptr;         // [batch_size, lookup_stride]
  ScalePointer scales = nullptr;                       // view base, seen as [N, P, H, S]
  const std::uint32_t* scales_lookup_table = nullptr;  // null: scales use the values' page ids
  std::uint32_t rows_per_page = 0;                     // R
  std::uint32_t scale_rows_per_page = 0;
  std::uint32_t lookup_stride = 0;
  std::uint32_t batch_size = 0;
  std::uint32_t num_blocks = 0;  // N
  std::uint32_t num_scale_blocks = 0;
  std::uint32_t max_seq_length = 0;
  std::uint32_t max_cache_length = 0;
  std::uint32_t max_history_length = 0;
  KvExtent<Params::kNumHeads> heads{};
  KvExtent<Params::kHeadSize> columns{};
  KvPageExtent<PageSize> page{};
  KvExtent<Granularity> group{};

  // Returns "PagedKVCache<bf16,h8,d128,p64>". A run-time extent is "?". ",q=f32/128" follows for a
  // quantized cache, ",mla" for an MLA cache, ",rope64" for rope-aware rows.
  static std::string type_name() {
    std::string name =
        absl::StrCat("PagedKVCache<", DTypeName(kDType), ",h", KvExtentName(Params::kNumHeads),
                     ",d", KvExtentName(kHeadSize), ",p", KvExtentName(PageSize));
    if constexpr (kQuantized) {
      absl::StrAppend(&name, ",q=", DTypeName(kScaleDType), "/", KvExtentName(Granularity));
    }
    if constexpr (Params::kIsMla) absl::StrAppend(&name, ",mla");
    if constexpr (kRopeAware) absl::StrAppend(&name, ",rope", Params::kRopeSize);
    return absl::StrCat(name, ">");
  }

  QUIRE_HOST_DEVICE constexpr std::uint32_t num_heads() const { return heads.get(); }
  QUIRE_HOST_DEVICE constexpr std::uint32_t head_size() const { return columns.get(); }
  QUIRE_HOST_DEVICE constexpr std::uint32_t page_size() const { return page.size(); }
  // Number of columns per scale; 1 if not quantized.
  QUIRE_HOST_DEVICE constexpr std::uint32_t granularity() const { return group.get(); }
  // Number of elements of one row.
  QUIRE_HOST_DEVICE constexpr std::int64_t row_elements() const {
    return std::int64_t{num_heads()} * head_size();
  }
  // Distance between two consecutive pages of the view: row_stride() in rows, block_stride() in
  // elements.
  QUIRE_HOST_DEVICE constexpr std::uint32_t row_stride() const { return rows_per_page; }
  QUIRE_HOST_DEVICE constexpr std::int64_t block_stride() const {
    return std::int64_t{rows_per_page} * row_elements();
  }
  // Maximum number of rows of a tile of block_paged_ptr, which must be within one page.
  QUIRE_HOST_DEVICE static constexpr std::uint32_t max_tile_size() requires(PageSize !=
                                                                            kDynamicExtent) {
    return PageSize;
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t max_tile_size() const
      requires(PageSize == kDynamicExtent) {
    return page.size();
  }

  QUIRE_HOST_DEVICE T* blocks_raw_ptr() const { return blocks; }
  BlocksView blocks_view() const {
    return {blocks,
            {num_blocks, page_size(), num_heads(), head_size()},
            {block_stride(), row_elements(), head_size(), 1}};
  }
  CacheLengthsView cache_lengths_nd() const {
    return CacheLengthsView::RowMajor(cache_lengths, {batch_size});
  }
  LookupTableView lookup_table_nd() const {
    return LookupTableView::RowMajor(lookup_table, {batch_size, lookup_stride});
  }

  // Returns the number of tokens of batch row b that were cached before this step.
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    QUIRE_DCHECK(b < batch_size);
    return cache_lengths[b];
  }
  QUIRE_HOST_DEVICE std::uint32_t max_prompt_length() const { return max_seq_length; }
  // Upper bound of the number of keys of any scheduled row, including this step's tokens.
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return max_cache_length; }
  // True if and only if all scheduled rows have cached length 0.
  QUIRE_HOST_DEVICE bool empty_cache() const { return max_history_length == 0; }

  // Returns the page of token t of batch row b; 0 is the null page. REQUIRES: b < batch_size; the
  // table has a column for t.
  QUIRE_HOST_DEVICE std::uint32_t page_id(std::uint32_t b, std::uint32_t t) const {
    QUIRE_DCHECK(b < batch_size);
    QUIRE_DCHECK(page.page_of(t) < lookup_stride);
    return lookup_table[std::int64_t{b} * lookup_stride + page.page_of(t)];
  }
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    return page_id(b, t) * rows_per_page + page.offset_of(t);
  }
  // Returns the number of rows from the view's base to the end of its last page.
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const {
    return (std::int64_t{num_blocks} - 1) * rows_per_page + page_size();
  }
  // Returns the first column of head h in the view, seen as a matrix [rows, H*D].
  QUIRE_HOST_DEVICE std::uint32_t col_idx(std::uint32_t h) const {
    QUIRE_DCHECK(h < num_heads());
    return h * head_size();
  }
  // Returns the row of a sparse index page * P + offset. Returns -1 for negative indices; TMA reads
  // that row as zeros.
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    if (encoded < 0) return -1;
    const auto at = static_cast<std::uint32_t>(encoded);
    return static_cast<std::int32_t>(page.page_of(at) * rows_per_page + page.offset_of(at));
  }
  // Returns the row of token t, or -1 if t is negative, past the table, or on no page.
  QUIRE_HOST_DEVICE std::int32_t sparse_tma_row(std::uint32_t b, std::int32_t t) const {
    const auto at = static_cast<std::uint32_t>(t);
    if (t < 0 || page.page_of(at) >= lookup_stride) return -1;
    const std::uint32_t id = page_id(b, at);
    if (id == kNullPage || id >= num_blocks) return -1;
    return static_cast<std::int32_t>(id * rows_per_page + page.offset_of(at));
  }
  QUIRE_HOST_DEVICE KvTmaCoords kv_tma_coords(std::uint32_t b, std::uint32_t t) const {
    return {page.offset_of(t), page_id(b, t)};
  }

  // Returns a pointer to element (b, t, h, d). The Tile rows from t on lie on one page, H*D
  // elements apart. REQUIRES: t mod Tile == 0.
  template <std::uint32_t Tile>
  requires kPointerTile<Tile> QUIRE_HOST_DEVICE T* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                                   std::uint32_t h,
                                                                   std::uint32_t d = 0) const {
    QUIRE_DCHECK(Tile <= page_size() && t % Tile == 0);
    return ElementAt(row_idx(b, t), h, d);
  }

  // Returns the row table of the BN positions from `base` on; see kv_row_indices.h. REQUIRES:
  // base % Alignment == 0.
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(kRowTile<BN, Alignment, PairCta>)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, PageSize, PairCta, IsLeader> populate(
          std::uint32_t b, std::uint32_t base)
  const {
    QUIRE_DCHECK(b < batch_size);
    return PopulateTile<BN, Alignment, PairCta, IsLeader>(
        KvTableRow<PageSize>{lookup_table + std::int64_t{b} * lookup_stride, lookup_stride,
                             rows_per_page, page},
        base);
  }

  // Loads Width elements from column d on and converts them to Out. A quantized cache multiplies
  // them by their scale. REQUIRES: the vector is within its head and, if quantized, one scale
  // group.
  template <int Width, typename Out = std::conditional_t<kQuantized, float, Element>>
  requires(!kRopeAware && kVectorFits<Width> &&
           (kQuantized ? KvFloat<Out> : KvElement<Out>)&&(!kQuantized ||
                                                          !std::is_same_v<Out, Element>))
      QUIRE_HOST_DEVICE Vec<Out, Width> load(std::uint32_t b, std::uint32_t h, std::uint32_t t,
                                             std::uint32_t d)
  const {
    QUIRE_DCHECK(d + Width <= head_size());
    const Vec<Element, Width> raw = LoadVector<Width>(ElementAt(row_idx(b, t), h, d));
    if constexpr (kQuantized) {
      QUIRE_DCHECK(d % granularity() + Width <= granularity());
      return ScaleVector<Out>(raw, *ScaleAt(scale_row_idx(b, t), h, d));
    } else {
      return ConvertVector<Out>(raw);
    }
  }

  // Stores Width elements unchanged. Writes nothing if the token has no page. The caller stores the
  // scale of a quantized cache with store_scale. In a rope-aware row, d is a content column.
  template <int Width>
  requires(kWritable&& KvWidth<Width>)
      QUIRE_HOST_DEVICE void store(std::uint32_t b, std::uint32_t h, std::uint32_t t,
                                   std::uint32_t d, const Vec<Element, Width>& values) const {
    QUIRE_DCHECK(d + Width <= content_size());
    const std::uint32_t id = page_id(b, t);
    QUIRE_DCHECK(id < num_blocks);
    if (id == kNullPage) return;
    StoreVector<Width>(ElementAt(row_idx(b, t), h, d), values);
  }

  // Loads Width elements without applying a scale.
  template <int Width>
  requires(kQuantized&& KvWidth<Width>)
      QUIRE_HOST_DEVICE Vec<Element, Width> load_quantized(std::uint32_t b, std::uint32_t h,
                                                           std::uint32_t t, std::uint32_t d)
  const {
    QUIRE_DCHECK(d + Width <= content_size());
    return LoadVector<Width>(ElementAt(row_idx(b, t), h, d));
  }

  QUIRE_HOST_DEVICE std::uint32_t scale_groups() const requires kQuantized {
    return (head_size() + granularity() - 1) / granularity();
  }
  QUIRE_HOST_DEVICE std::int64_t scale_row_elements() const requires kQuantized {
    return std::int64_t{num_heads()} * scale_groups();
  }
  // Distance between two consecutive pages of scales, in scales.
  QUIRE_HOST_DEVICE std::int64_t scale_block_stride() const requires kQuantized {
    return std::int64_t{scale_rows_per_page} * scale_row_elements();
  }
  QUIRE_HOST_DEVICE ScalePointer scales_raw_ptr() const requires kQuantized { return scales; }
  auto scales_view() const requires kQuantized {
    return typename PagedKVCache::ScalesView{
        scales,
        {num_scale_blocks, page_size(), num_heads(), scale_groups()},
        {scale_block_stride(), scale_row_elements(), scale_groups(), 1}};
  }
  // Returns the page with the scales of token t. It equals page_id(b, t) unless the scales have
  // their own lookup table.
  QUIRE_HOST_DEVICE std::uint32_t scale_page_id(std::uint32_t b,
                                                std::uint32_t t) const requires kQuantized {
    QUIRE_DCHECK(b < batch_size);
    QUIRE_DCHECK(page.page_of(t) < lookup_stride);
    return scale_table()[std::int64_t{b} * lookup_stride + page.page_of(t)];
  }
  QUIRE_HOST_DEVICE std::uint32_t scale_row_idx(std::uint32_t b,
                                                std::uint32_t t) const requires kQuantized {
    return scale_page_id(b, t) * scale_rows_per_page + page.offset_of(t);
  }
  // Returns the lookup table row of b for the scales.
  QUIRE_HOST_DEVICE KvTableRow<PageSize> scale_table_row(std::uint32_t b) const requires
      kQuantized {
    QUIRE_DCHECK(b < batch_size);
    return {scale_table() + std::int64_t{b} * lookup_stride, lookup_stride, scale_rows_per_page,
            page};
  }
  QUIRE_HOST_DEVICE std::int64_t num_scale_rows() const requires kQuantized {
    return (std::int64_t{num_scale_blocks} - 1) * scale_rows_per_page + page_size();
  }
  // Returns the page of the scale of token t, and the first row of the 16-byte unit that contains
  // this scale.
  QUIRE_HOST_DEVICE KvTmaCoords scale_tma_coords(std::uint32_t b,
                                                 std::uint32_t t) const requires kQuantized {
    constexpr std::uint32_t kScalesPerUnit = 16 / sizeof(Scale);
    return {page.offset_of(t) / kScalesPerUnit * kScalesPerUnit, scale_page_id(b, t)};
  }
  // Returns the pointer to the scale of element (b, t, h, d).
  QUIRE_HOST_DEVICE ScalePointer
  scales_block_paged_ptr(std::uint32_t b, std::uint32_t t, std::uint32_t h,
                         std::uint32_t d = 0) const requires kQuantized {
    return ScaleAt(scale_row_idx(b, t), h, d);
  }
  // Loads Width scales from the group of column d on. REQUIRES: they belong to head h.
  template <int Width>
  requires(kQuantized&& KvWidth<Width>)
      QUIRE_HOST_DEVICE Vec<Scale, Width> load_scale(std::uint32_t b, std::uint32_t h,
                                                     std::uint32_t t, std::uint32_t d)
  const {
    QUIRE_DCHECK(d / granularity() + Width <= scale_groups());
    return LoadVector<Width>(ScaleAt(scale_row_idx(b, t), h, d));
  }
  // Stores Width scales from the group of column d on. Writes nothing if the token has no page.
  template <int Width>
  requires(kQuantized&& kWritable&& KvWidth<Width>)
      QUIRE_HOST_DEVICE void store_scale(std::uint32_t b, std::uint32_t h, std::uint32_t t,
                                         std::uint32_t d, const Vec<Scale, Width>& values) const {
    QUIRE_DCHECK(d / granularity() + Width <= scale_groups());
    const std::uint32_t id = scale_page_id(b, t);
    QUIRE_DCHECK(id < num_scale_blocks);
    if (id == kNullPage) return;
    StoreVector<Width>(ScaleAt(scale_row_idx(b, t), h, d), values);
  }

  // Loads and dequantizes content columns of a rope-aware row. REQUIRES: d + Width <= kContentSize.
  template <int Width>
  requires(kRopeAware&& kVectorFits<Width>)
      QUIRE_HOST_DEVICE Vec<float, Width> load_content(std::uint32_t b, std::uint32_t t,
                                                       std::uint32_t d)
  const {
    QUIRE_DCHECK(d + Width <= content_size());
    const Vec<Element, Width> raw = LoadVector<Width>(ElementAt(row_idx(b, t), 0, d));
    if constexpr (kQuantized) {
      QUIRE_DCHECK(d % granularity() + Width <= granularity());
      return ScaleVector<float>(raw, *ScaleAt(scale_row_idx(b, t), 0, d));
    } else {
      return ConvertVector<float>(raw);
    }
  }
  // Loads rope values of a rope-aware row, which have no scale. REQUIRES: d + Width <= kRopeSize.
  template <int Width>
  requires(kRopeAware&& KvWidth<Width>&& Params::kRopeSize % Width == 0)
      QUIRE_HOST_DEVICE Vec<BF16, Width> load_rope(std::uint32_t b, std::uint32_t t,
                                                   std::uint32_t d)
  const { return LoadVector<Width>(static_cast<const BF16*>(RopeAt(b, t, d, Width))); }
  // Stores rope values. Writes nothing if the token has no page.
  template <int Width>
  requires(kRopeAware&& kWritable&& KvWidth<Width>&& Params::kRopeSize % Width == 0)
      QUIRE_HOST_DEVICE void store_rope(std::uint32_t b, std::uint32_t t, std::uint32_t d,
                                        const Vec<BF16, Width>& values) const {
    if (page_id(b, t) == kNullPage) return;
    StoreVector<Width>(RopeAt(b, t, d, Width), values);
  }

  // Converts to a read-only view, or to a view in which some of the constant extents are fields.
  template <typename U, std::uint32_t Heads, std::uint32_t Columns, std::uint32_t Pages,
            std::uint32_t Group>
  requires(kIsWiderView<U, Heads, Columns, Pages, Group>) QUIRE_HOST_DEVICE constexpr
  operator PagedKVCache<U, KVCacheStaticParams<Heads, Columns, Params::kIsMla, Params::kRopeSize>,
                        Pages, Scale, Group>() const {
    PagedKVCache<U, KVCacheStaticParams<Heads, Columns, Params::kIsMla, Params::kRopeSize>, Pages,
                 Scale, Group>
        to;
    to.blocks = blocks;
    to.cache_lengths = cache_lengths;
    to.lookup_table = lookup_table;
    to.scales = scales;
    to.scales_lookup_table = scales_lookup_table;
    to.rows_per_page = rows_per_page;
    to.scale_rows_per_page = scale_rows_per_page;
    to.lookup_stride = lookup_stride;
    to.batch_size = batch_size;
    to.num_blocks = num_blocks;
    to.num_scale_blocks = num_scale_blocks;
    to.max_seq_length = max_seq_length;
    to.max_cache_length = max_cache_length;
    to.max_history_length = max_history_length;
    if constexpr (Heads == kDynamicExtent) to.heads.value = num_heads();
    if constexpr (Columns == kDynamicExtent) to.columns.value = head_size();
    if constexpr (Group == kDynamicExtent) to.group.value = granularity();
    if constexpr (Pages == kDynamicExtent) {
      to.page = KvPageExtent<kDynamicExtent>::FromSize(page_size());
    }
    return to;
  }

 private:
  QUIRE_HOST_DEVICE constexpr std::uint32_t content_size() const {
    return head_size() - 2 * Params::kRopeSize;
  }
  QUIRE_HOST_DEVICE const std::uint32_t* scale_table() const {
    return scales_lookup_table != nullptr ? scales_lookup_table : lookup_table;
  }
  QUIRE_HOST_DEVICE T* ElementAt(std::uint32_t row, std::uint32_t h, std::uint32_t d) const {
    QUIRE_DCHECK(h < num_heads() && d < head_size());
    return blocks + (std::int64_t{row} * row_elements() + std::int64_t{h} * head_size() + d);
  }
  QUIRE_HOST_DEVICE ScalePointer ScaleAt(std::uint32_t row, std::uint32_t h,
                                         std::uint32_t d) const requires kQuantized {
    QUIRE_DCHECK(h < num_heads() && d < head_size());
    return scales + (std::int64_t{row} * scale_row_elements() + std::int64_t{h} * scale_groups() +
                     d / granularity());
  }
  QUIRE_HOST_DEVICE auto RopeAt(std::uint32_t b, std::uint32_t t, std::uint32_t d,
                                [[maybe_unused]] int width) const requires kRopeAware {
    QUIRE_DCHECK(d + static_cast<std::uint32_t>(width) <= Params::kRopeSize);
    using Rope = std::conditional_t<std::is_const_v<T>, const BF16, BF16>;
    return reinterpret_cast<Rope*>(ElementAt(row_idx(b, t), 0, Params::kContentSize)) + d;
  }
};

}  // namespace quire::cache
