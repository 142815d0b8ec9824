#pragma once

// What a tensor map says, in numbers: extents, strides, box and base of the copies that bring tiles
// of a KV cache into shared memory. No CUDA header, so that plans are proven on machines without
// one; tma_descriptor.h encodes them.
//
// Place:      above the views and operands of cache_manager, below the kernels that issue copies.
// Invariants: a plan that was returned keeps every rule of the encoder (cuTensorMapEncodeTiled,
// CUDA
//             13.0). It depends on base, rows and types only, so maps are made once, at start.
// Threads:    values.
// Lifetime:   none; `base` must stay mapped while a map of the plan is in use.
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
#include "cache_manager/views/kv_continuous_view.h"
#include "cache_manager/views/kv_mha_operand.h"

namespace quire::kernels::cuda {

// 16-byte pieces of a row in shared memory change places inside 32, 64 or 128 bytes.
enum class TmaSwizzle : std::uint8_t { kNone, k32B, k64B, k128B };
enum class TmaL2Promotion : std::uint8_t { kNone, k64B, k128B, k256B };

// How the 128-byte column chunks of a row come in one copy. kNone: one copy per chunk. kTile: one
// box of all chunks, [chunk][row][unit] in shared memory as with kNone. kRows: the same in groups
// of 8 rows, [row / 8][chunk][row % 8][unit], which lets every page of a tile come in one copy.
enum class TmaFold : std::uint8_t { kNone, kTile, kRows };

// Elements of one swizzle span; of 16 bytes, the least box row, without a swizzle.
constexpr std::uint32_t TmaUnit(std::uint32_t element_bytes, TmaSwizzle swizzle) {
  return (16u << static_cast<std::uint32_t>(swizzle)) / element_bytes;
}
// Columns of a tile that holds `depth` columns: whole units.
constexpr std::uint32_t PaddedDepth(std::uint32_t element_bytes, TmaSwizzle swizzle,
                                    std::uint32_t depth) {
  const std::uint32_t unit = TmaUnit(element_bytes, swizzle);
  return (depth + unit - 1) / unit * unit;
}
// Columns that one gather of four rows brings.
constexpr std::uint32_t Gather4BoxWidth(std::uint32_t element_bytes, std::uint32_t width,
                                        TmaSwizzle swizzle) {
  return swizzle == TmaSwizzle::kNone ? width : TmaUnit(element_bytes, swizzle);
}
// Rows of one box of a tile of `tile_rows` rows over pages of page_size (0: no pages).
constexpr std::uint32_t TmaBoxRows(std::uint32_t tile_rows, std::uint32_t page_size) {
  return cache::TileEffPage(tile_rows, page_size);
}
// Chunks that a folded copy brings; 1 when it cannot fold: the tile is whole chunks, the head whole
// tiles, and the boxes of a tile lie where unfolded ones would (kRows: in groups of 8 rows).
constexpr std::uint32_t TmaFoldChunks(std::uint32_t element_bytes, TmaFold fold,
                                      std::uint32_t tile_columns, std::uint32_t head_size,
                                      std::uint32_t box_rows, std::uint32_t tile_rows) {
  const std::uint32_t unit = TmaUnit(element_bytes, TmaSwizzle::k128B);
  const bool whole =
      tile_columns % unit == 0 && tile_columns >= 2 * unit && head_size % tile_columns == 0;
  const bool placed = fold == TmaFold::kRows   ? box_rows % 8 == 0
                      : fold == TmaFold::kTile ? box_rows == tile_rows
                                               : false;
  return whole && placed ? tile_columns / unit : 1;
}
// Where byte `offset` of an unswizzled box lies, counted from the same 1024-byte aligned place.
constexpr std::uint32_t TmaSwizzledByte(std::uint32_t offset, TmaSwizzle swizzle) {
  const std::uint32_t mask = (1u << static_cast<std::uint32_t>(swizzle)) - 1;
  return offset ^ (((offset >> 7) & mask) << 4);
}
// The box of TILE scales: its start is rounded down to 16 bytes, so it is 16 bytes longer.
inline constexpr std::uint32_t kScaleAlignment = 16 / sizeof(float);
constexpr std::uint32_t TmaScaleWindow(std::uint32_t tile) {
  return tile + kScaleAlignment;
}

// What a builder reads of a cache or a tensor.
struct TmaSource {
  const void* base = nullptr;
  DType dtype = DType::kInvalid;
  std::uint32_t num_heads = 0;
  std::uint32_t head_size = 0;     // columns of a head in memory
  std::uint32_t content_size = 0;  // of them, columns of `dtype`; the rest is BF16 rope values
  std::uint32_t page_size = 0;     // 0: rows in one piece
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
template <typename T, typename Params>
TmaSource TmaSourceOf(const cache::ContinuousBatchingKVCache<T, Params>& view) {
  return {.base = view.blocks,
          .dtype = view.kDType,
          .num_heads = view.num_heads(),
          .head_size = view.head_size(),
          .content_size = view.head_size(),
          .rows_per_page = view.row_stride(),
          .num_pages = view.num_blocks,
          .num_rows = view.num_kv_rows(),
          .name = view.type_name()};
}
template <typename C>
TmaSource TmaSourceOf(const cache::KVCacheMHAOperand<C>& operand) {
  return TmaSourceOf(operand.cache);
}
namespace internal {
// A plain tensor of f32 is also what CreateScaleTmaTile reads: a flat list of scales.
template <typename Operand>
TmaSource TensorSource(const Operand& operand) {
  TmaSource source{.base = operand.data,
                   .dtype = operand.kDType,
                   .num_heads = operand.num_heads,
                   .head_size = operand.head_size,
                   .content_size = operand.head_size,
                   .num_rows = operand.num_kv_rows(),
                   .name = operand.type_name()};
  if constexpr (std::is_same_v<typename Operand::Element, float>) {
    source.scales = operand.data;
    source.scales_per_row = operand.num_heads * operand.head_size;
    source.num_scales = source.num_rows * source.scales_per_row;
  }
  return source;
}
}  // namespace internal
template <typename T>
TmaSource TmaSourceOf(const cache::ContiguousMHAOperand<T>& operand) {
  return internal::TensorSource(operand);
}
template <typename T>
TmaSource TmaSourceOf(const cache::RaggedMHAOperand<T>& operand) {
  return internal::TensorSource(operand);
}

// Which builders exist for which type.
template <typename C>
concept TmaReadable = requires(const C& c) {
  TmaSourceOf(c);
};
template <typename C>
inline constexpr bool kTmaRope = false;
template <typename T, typename Params, std::uint32_t P, typename Scale, std::uint32_t G>
inline constexpr bool kTmaRope<cache::PagedKVCache<T, Params, P, Scale, G>> = Params::kRopeSize > 0;
template <typename C>
inline constexpr bool kTmaRope<cache::KVCacheMHAOperand<C>> = kTmaRope<C>;
template <typename C>
concept TmaRopeReadable = TmaReadable<C> && kTmaRope<C>;
template <typename C>
concept TmaScaleReadable = TmaReadable<C> &&
    (C::kQuantized || (C::kPageSize == 0 && C::kLengthIncludesNew && C::kDType == DType::kF32));
template <typename C>
concept TmaPagedReadable = TmaReadable<C> && C::kPageSize != 0;

inline constexpr std::uint32_t kMaxTmaRank = 5;

// Arguments of the encoder, and what a kernel does with the map. Extents, strides and boxes are
// fastest first; interleave none, element strides 1, out of bounds reads zero.
struct TmaPlan {
  absl::string_view builder;             // for messages
  std::int32_t compute_capability = 90;  // the least, 90 for 9.0
  const void* base = nullptr;
  DType dtype = DType::kInvalid;  // of the map; one-byte types are unsigned bytes there
  std::uint32_t rank = 0;
  std::array<std::uint64_t, kMaxTmaRank> extents{};
  std::array<std::uint64_t, kMaxTmaRank - 1> strides{};  // bytes, of extents 1, 2, ...
  std::array<std::uint32_t, kMaxTmaRank> box{};
  TmaSwizzle swizzle = TmaSwizzle::kNone;
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
  // What all copies of one stage fill: rows, heads, columns. A multiple of the box.
  std::array<std::uint32_t, 3> tile{};

  std::int64_t box_bytes() const;
  std::int64_t tile_bytes() const;
};

// K and V of attention: a tile is tile_rows rows of one head. Extents {D, H, rows}, box {unit, 1,
// TmaBoxRows}; columns past the content read as zero, never as the next head. For page entry p and
// chunk j the copy has coordinates (j unit, head, row of p) and goes to element
// (j tile_rows + p box rows) unit of the stage.
struct TmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // whole units; 0: all of the content
  TmaSwizzle swizzle = TmaSwizzle::k128B;
  TmaFold fold = TmaFold::kNone;  // not kNone: the 128-byte swizzle
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanTmaTile(const TmaSource& source, const TmaTileSpec& spec);

// The same, addressed by (row in page, page): coordinates (j unit, head, row, page). Bounded by the
// pages instead of the rows of the whole view.
absl::StatusOr<TmaPlan> PlanPagedTmaTile(const TmaSource& source, const TmaTileSpec& spec);

// Loads or stores the first n of tile_rows rows from row `start` on: coordinates (column, tile_rows
// - n, (start + n) H + head), so that rows from n on fall outside extent 1. Extents {D, tile_rows,
// H (rows + 1)}, whose strides overlap on purpose; the base lies tile_rows rows before the first
// one, in memory that must be mapped (kGuardRows).
struct RaggedTmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // whole units; 0: all of the content
  TmaSwizzle swizzle = TmaSwizzle::k128B;
};
absl::StatusOr<TmaPlan> PlanRaggedTmaTile(const TmaSource& source, const RaggedTmaTileSpec& spec);

// Four arbitrary rows per copy, all heads of a row in one: extents {row, rows}. Compute
// capability 10.0.
struct Gather4TmaTileSpec {
  std::uint32_t tile_width = 0;   // elements of `dtype`
  std::uint32_t tile_stride = 0;  // 0, or the width of a row
  std::uint32_t tile_height = 4;  // a multiple of 4
  TmaSwizzle swizzle = TmaSwizzle::kNone;
  DType dtype = DType::kInvalid;  // a wider type reads the same bytes; kInvalid: the source's
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanGather4TmaTile(const TmaSource& source, const Gather4TmaTileSpec& spec);

// The BF16 rope values of rope-aware rows, as PlanTmaTile. padded_depth is the bytes before them.
struct RopeTmaTileSpec {
  std::uint32_t tile_rows = 0;
  std::uint32_t tile_columns = 0;  // rope values of a row
  std::uint32_t padded_depth = 0;
  TmaSwizzle swizzle = TmaSwizzle::k128B;
};
absl::StatusOr<TmaPlan> PlanRopeTmaTile(const TmaSource& source, const RopeTmaTileSpec& spec);

// The same values of four arbitrary rows. Compute capability 10.0.
struct RopeGather4TmaTileSpec {
  std::uint32_t tile_width = 0;  // rope values of a row
  std::uint32_t padded_depth = 0;
  std::uint32_t tile_height = 4;
  TmaSwizzle swizzle = TmaSwizzle::k128B;
  TmaL2Promotion l2 = TmaL2Promotion::kNone;
};
absl::StatusOr<TmaPlan> PlanRopeGather4TmaTile(const TmaSource& source,
                                               const RopeGather4TmaTileSpec& spec);

// f32 scales of consecutive rows, one per row. Of a cache the box is TmaScaleWindow(tile_rows)
// scales and starts at the scale row rounded down to 16 bytes; of a tensor it is tile_rows scales.
struct ScaleTmaTileSpec {
  std::uint32_t tile_rows = 0;
};
absl::StatusOr<TmaPlan> PlanScaleTmaTile(const TmaSource& source, const ScaleTmaTileSpec& spec);

// FAILED_PRECONDITION, with both capabilities, unless `device` can use the plan's copies.
absl::Status CheckTmaDevice(const Device& device, const TmaPlan& plan);
// INVALID_ARGUMENT that names the rule of the encoder which the plan breaks.
absl::Status CheckTmaPlan(const TmaPlan& plan);

}  // namespace quire::kernels::cuda
