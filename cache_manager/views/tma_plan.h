#pragma once

// Plans of tensor maps: extents, strides, box and base of the TMA copies that load tiles of a KV
// cache into shared memory. No CUDA header is included, so tests check plans on machines without
// CUDA. tma_descriptor.h encodes the plans.
//
// Place:      above the views of cache_manager, below the kernels that issue copies.
// Invariants: a returned plan obeys every rule of the encoder (cuTensorMapEncodeTiled, CUDA 13.0).
//             A plan depends only on base, rows and types, so maps are made once, at start.
// Threads:    any; values.
// Lifetime:   `base` must stay mapped while a map of the plan is in use.
//
// SOURCE: the builders, their names and tile shapes are those of the KV cache of Modular MAX; where
// they differ, tests/testdata/kv_cache/differences.md says how.

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/dtype.h"
#include "cache_manager/views/kv_cache_view.h"

namespace quire::kernels::cuda {

// The swizzle permutes the 16-byte pieces of a row in shared memory within 32, 64 or 128 bytes.
enum class TmaSwizzle : std::uint8_t { kNone, k32B, k64B, k128B };
enum class TmaL2Promotion : std::uint8_t { kNone, k64B, k128B, k256B };

// Selects how the 128-byte column chunks of a row are copied. `unit` is the elements of one chunk.
//   kNone: one copy per chunk.
//   kTile: one box of all chunks, with the layout of kNone in shared memory: [chunk][row][unit].
//   kRows: groups of 8 rows, [row / 8][chunk][row % 8][unit], so that one copy loads a whole page.
enum class TmaFold : std::uint8_t { kNone, kTile, kRows };

// Returns the number of elements in one swizzle span. Without a swizzle, returns the number in 16
// bytes, the minimum row of a box.
constexpr std::uint32_t TmaUnit(std::uint32_t element_bytes, TmaSwizzle swizzle) {
  return (16u << static_cast<std::uint32_t>(swizzle)) / element_bytes;
}
// Returns `depth` rounded up to whole units.
constexpr std::uint32_t PaddedDepth(std::uint32_t element_bytes, TmaSwizzle swizzle,
                                    std::uint32_t depth) {
  const std::uint32_t unit = TmaUnit(element_bytes, swizzle);
  return (depth + unit - 1) / unit * unit;
}
// Returns the number of columns that one gather of four rows loads.
constexpr std::uint32_t Gather4BoxWidth(std::uint32_t element_bytes, std::uint32_t width,
                                        TmaSwizzle swizzle) {
  return swizzle == TmaSwizzle::kNone ? width : TmaUnit(element_bytes, swizzle);
}
// Returns the number of rows in one box, for tiles of `tile_rows` rows and pages of page_size rows
// (0: no pages).
constexpr std::uint32_t TmaBoxRows(std::uint32_t tile_rows, std::uint32_t page_size) {
  return cache::TileEffPage(tile_rows, page_size);
}
// Returns the number of chunks that a folded copy loads, or 1 if the copy cannot be folded. Folding
// requires at least two whole chunks per tile, and whole tiles per head. With kTile, one box must
// have all rows of the tile; with kRows, a box must have whole groups of 8 rows.
constexpr std::uint32_t TmaFoldChunks(std::uint32_t element_bytes, TmaFold fold,
                                      std::uint32_t tile_columns, std::uint32_t head_size,
                                      std::uint32_t box_rows, std::uint32_t tile_rows) {
  const std::uint32_t unit = TmaUnit(element_bytes, TmaSwizzle::k128B);
  const bool has_whole_chunks =
      tile_columns % unit == 0 && tile_columns >= 2 * unit && head_size % tile_columns == 0;
  const bool has_whole_rows = fold == TmaFold::kRows   ? box_rows % 8 == 0
                              : fold == TmaFold::kTile ? box_rows == tile_rows
                                                       : false;
  return has_whole_chunks && has_whole_rows ? tile_columns / unit : 1;
}
// Returns the swizzled offset of byte `offset` of a box. Both offsets start at the same 1024-byte
// aligned address.
constexpr std::uint32_t TmaSwizzledByte(std::uint32_t offset, TmaSwizzle swizzle) {
  const std::uint32_t mask = (1u << static_cast<std::uint32_t>(swizzle)) - 1;
  return offset ^ (((offset >> 7) & mask) << 4);
}
// The start of a box of scales is rounded down to a multiple of this number of scales (16 bytes).
inline constexpr std::uint32_t kScaleAlignment = 16 / sizeof(float);

// Returns the number of scales in a box that contains any `tile` consecutive scales.
constexpr std::uint32_t TmaScaleWindow(std::uint32_t tile) {
  return tile + kScaleAlignment;
}

// The properties of a cache or a tensor that plans are made from.
struct TmaSource {
  const void* base = nullptr;
  DType dtype = DType::kInvalid;
  std::uint32_t num_heads = 0;
  std::uint32_t head_size = 0;     // columns of a head in memory
  std::uint32_t content_size = 0;  // leading columns of type `dtype`; BF16 rope values follow
  std::uint32_t page_size = 0;     // 0: all rows are contiguous
  std::uint32_t rows_per_page = 0;
  std::uint32_t num_pages = 0;
  std::int64_t num_rows = 0;
  const void* scales = nullptr;  // f32
  std::int64_t num_scales = 0;
  std::uint32_t scales_per_row = 0;
  bool scales_are_paged = false;
  std::string name;  // for messages

  std::uint32_t element_bytes() const { return static_cast<std::uint32_t>(DTypeSize(dtype)); }
  std::int64_t row_bytes() const { return std::int64_t{num_heads} * head_size * DTypeSize(dtype); }
};

template <typename T, typename Params, std::uint32_t P, typename Scale, std::uint32_t G>
TmaSource TmaSourceOf(const cache::PagedKVCache<T, Params, P, Scale, G>& view) {
  TmaSource source{.base = view.blocks,
                   .dtype = view.kDType,
                   .num_heads = view.num_heads(),
                   .head_size = view.head_size(),
                   .content_size = view.head_size() - 2 * Params::kRopeSize,
                   .page_size = view.page_size(),
                   .rows_per_page = view.row_stride(),
                   .num_pages = view.num_blocks,
                   .num_rows = view.num_kv_rows(),
                   .name = view.type_name()};
  if constexpr (cache::PagedKVCache<T, Params, P, Scale, G>::kQuantized) {
    source.scales = view.scales;
    source.scales_per_row = static_cast<std::uint32_t>(view.scale_row_elements());
    source.num_scales = view.num_scale_rows() * source.scales_per_row;
    source.scales_are_paged = true;
  }
  return source;
}

// The types that each builder of tensor maps (tma_descriptor.h) accepts. Overloads of TmaSourceOf
// for other types are found by argument-dependent lookup (reference/tma_reference_source.h).
template <typename C>
concept TmaReadable = requires(const C& c) {
  TmaSourceOf(c);
};
template <typename C>
inline constexpr bool kTmaRope = false;
template <typename T, typename Params, std::uint32_t P, typename Scale, std::uint32_t G>
inline constexpr bool kTmaRope<cache::PagedKVCache<T, Params, P, Scale, G>> = Params::kRopeSize > 0;
template <typename C>
concept TmaRopeReadable = TmaReadable<C> && kTmaRope<C>;
template <typename C>
concept TmaScaleReadable = TmaReadable<C> &&
    (C::kQuantized || (C::kPageSize == 0 && C::kLengthIncludesNew && C::kDType == DType::kF32));
template <typename C>
concept TmaPagedReadable = TmaReadable<C> && C::kPageSize != 0;

inline constexpr std::uint32_t kMaxTmaRank = 5;

// The arguments of the encoder, and the tile that a kernel loads with the map. Extents, strides and
// boxes begin with the fastest dimension. There is no interleave, element strides are 1, and reads
// out of bounds are zero.
struct TmaPlan {
  absl::string_view builder;             // name of the function that creates the map, for messages
  std::int32_t compute_capability = 90;  // minimum, 90 for 9.0
  const void* base = nullptr;
  DType dtype = DType::kInvalid;  // element type of the map; one-byte types are mapped as bytes
  std::uint32_t rank = 0;
  std::array<std::uint64_t, kMaxTmaRank> extents{};
  std::array<std::uint64_t, kMaxTmaRank - 1> strides{};  // bytes, of extents 1, 2, ...
  std::array<std::uint32_t, kMaxTmaRank> box{};
  TmaSwizzle swizzle = TmaSwizzle::kNone;
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
  // Rows, heads and columns that the copies of one tile fill in shared memory. A multiple of the
  // box.
  std::array<std::uint32_t, 3> tile{};

  std::int64_t box_bytes() const;
  std::int64_t tile_bytes() const;
};

// Plans tiles of K or V for attention. A tile is tile_rows rows of one head. The map has extents
// {D, H, rows} and box {unit, 1, TmaBoxRows}. Columns after the content read as zero, not as the
// next head. For entry p of the tile's row table (PagedRowIndices) and chunk j, the copy has
// coordinates (j * unit, head, row of p). In shared memory its destination is element (j *
// tile_rows + p * box rows) * unit of the tile.
struct TmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // whole units; 0: all of the content
  TmaSwizzle swizzle = TmaSwizzle::k128B;
  TmaFold fold = TmaFold::kNone;  // kTile and kRows require k128B
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanTmaTile(const TmaSource& source, const TmaTileSpec& spec);

// Plans the same tile as PlanTmaTile, but addressed by page, with coordinates (j * unit, head, row
// in page, page). The map is bounded by the pages instead of the rows of the whole view.
absl::StatusOr<TmaPlan> PlanPagedTmaTile(const TmaSource& source, const TmaTileSpec& spec);

// Plans loads or stores of n <= tile_rows rows from row `start` on. The coordinates are
// (column, tile_rows - n, (start + n) * H + head), so rows from n on are outside extent 1. The
// extents {D, tile_rows, H * (rows + 1)} have strides that overlap on purpose. The base is
// tile_rows rows before the first row, in memory that must be mapped (kGuardRows).
struct RaggedTmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // whole units; 0: all of the content
  TmaSwizzle swizzle = TmaSwizzle::k128B;
};
absl::StatusOr<TmaPlan> PlanRaggedTmaTile(const TmaSource& source, const RaggedTmaTileSpec& spec);

// Plans copies of four arbitrary rows with all heads. The extents are {elements of a row, rows}.
// Needs compute capability 10.0.
struct Gather4TmaTileSpec {
  std::uint32_t tile_width = 0;   // elements of `dtype`
  std::uint32_t tile_stride = 0;  // 0, or the width of a row
  std::uint32_t tile_height = 4;  // a multiple of 4
  TmaSwizzle swizzle = TmaSwizzle::kNone;
  // Element type of the map; a wider type reads the same bytes. kInvalid: the type of the source.
  DType dtype = DType::kInvalid;
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanGather4TmaTile(const TmaSource& source, const Gather4TmaTileSpec& spec);

// Plans tiles of the BF16 rope values of rope-aware rows, otherwise like PlanTmaTile. padded_depth
// is the number of bytes before the rope values.
struct RopeTmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // rope values of a row
  std::uint32_t padded_depth = 0;
  TmaSwizzle swizzle = TmaSwizzle::k128B;
};
absl::StatusOr<TmaPlan> PlanRopeTmaTile(const TmaSource& source, const RopeTmaTileSpec& spec);

// Plans copies of the rope values of four arbitrary rows. Needs compute capability 10.0.
struct RopeGather4TmaTileSpec {
  std::uint32_t tile_width = 0;  // rope values of a row
  std::uint32_t padded_depth = 0;
  std::uint32_t tile_height = 4;
  TmaSwizzle swizzle = TmaSwizzle::k128B;
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanRopeGather4TmaTile(const TmaSource& source,
                                               const RopeGather4TmaTileSpec& spec);

// Plans copies of the f32 scales of consecutive rows, with one scale per row. The box of a cache is
// TmaScaleWindow(tile_rows) scales and starts at the scale row rounded down to 16 bytes. The box of
// a tensor is tile_rows scales.
struct ScaleTmaTileSpec {
  std::uint32_t tile_rows = 0;
};
absl::StatusOr<TmaPlan> PlanScaleTmaTile(const TmaSource& source, const ScaleTmaTileSpec& spec);

// Returns FAILED_PRECONDITION with both capabilities if `device` cannot execute the plan's copies.
absl::Status CheckTmaDevice(const Device& device, const TmaPlan& plan);
// If the plan violates a rule of the encoder, returns INVALID_ARGUMENT with the rule.
absl::Status CheckTmaPlan(const TmaPlan& plan);

}  // namespace quire::kernels::cuda
