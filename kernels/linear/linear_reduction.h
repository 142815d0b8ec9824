#pragma once

// Facts of linear on CUDA that packing, launch, kernel and tests share: tiles, the order in which a
// row's products are summed, and the order of quantised weights in memory. Host and device.
//
// The sum over K: tiles of 64 inputs; `splits` sub-ranges of `tiles_per_split` tiles each (the last
// one may be shorter); inside a sub-range MMA steps of 16 inputs ascending, from zero; sub-ranges
// added in index order. Where groups of inputs have scales the steps of one group and tile are
// summed from zero, multiplied by the scale and added to the sub-range's sum; one scale for all
// inputs multiplies the sum of each sub-range. All of it follows from N, K and the group, so any
// kernel may give the sub-ranges to one block or to several.

#include <cstdint>

#include "base/dtype.h"
#include "base/host_device.h"
#include "base/weight_format.h"
#include "kernels/cuda/context.h"

namespace quire::kernels::cuda {

inline constexpr std::uint32_t kLinearTileN = 128;  // output features of a block
inline constexpr std::uint32_t kLinearTileK = 64;   // inputs of a pipeline stage
// Rows of the largest block that works on a part of K only; fewer rows always split K.
inline constexpr std::uint32_t kLinearSmallRows = 64;
// Blocks that fill a large GPU: enough to keep its memory busy.
inline constexpr std::uint32_t kLinearFillBlocks = 128;
inline constexpr std::uint32_t kLinearMaxSplits = 16;
inline constexpr std::uint32_t kLinearMinTilesPerSplit = 4;

struct LinearReduction {
  std::uint32_t splits;
  std::uint32_t tiles_per_split;
};

constexpr std::uint32_t LinearTilesN(std::uint32_t n) {
  return (n + kLinearTileN - 1) / kLinearTileN;
}
constexpr std::uint32_t LinearTilesK(std::uint32_t k) {
  return (k + kLinearTileK - 1) / kLinearTileK;
}

// As many sub-ranges, a power of two, as make kLinearFillBlocks blocks, but none shorter than
// kLinearMinTilesPerSplit tiles.
constexpr LinearReduction LinearReductionOf(std::uint32_t n, std::uint32_t k) {
  const std::uint32_t tiles = LinearTilesK(k);
  std::uint32_t splits = 1;
  while (LinearTilesN(n) * splits < kLinearFillBlocks && splits < kLinearMaxSplits &&
         tiles / (2 * splits) >= kLinearMinTilesPerSplit) {
    splits *= 2;
  }
  const std::uint32_t each = (tiles + splits - 1) / splits;
  return {(tiles + each - 1) / each, each};
}

// Products of codes by codes: tiles of 128 inputs, whose steps of 32 are summed from zero,
// multiplied by the scale of the weights and added to the sub-range's sum in one rounding;
// sub-ranges, the same as above in whole tiles, are added in index order.
inline constexpr std::uint32_t kFp8TileK = 128;
constexpr LinearReduction Fp8ReductionOf(std::uint32_t n, std::uint32_t k) {
  const std::uint32_t tiles = (k + kFp8TileK - 1) / kFp8TileK;
  const std::uint32_t each =
      (LinearReductionOf(n, k).tiles_per_split * kLinearTileK + kFp8TileK - 1) / kFp8TileK;
  return {(tiles + each - 1) / each, each};
}

// Groups of rows: tiles of so many rows while groups have about as many.
inline constexpr std::uint32_t kFewGroupRows = 8;
constexpr bool HasFewGroupRows(std::uint32_t rows, std::uint32_t groups) {
  return rows <= std::uint64_t{kFewGroupRows} * groups;
}

// Device memory that blocks exchange partial sums through, zeroed once: counters, then tiles of f32
// sums, one of kLinearTileN x kLinearSmallRows per block of a launch that splits K over blocks.
// That is fewer than 2 * kLinearFillBlocks up to kLinearSmallRows rows, and room for some more.
inline constexpr std::uint32_t kLinearMaxPartials = 4 * kLinearFillBlocks;
inline constexpr std::int64_t kLinearCounterBytes = std::int64_t{kLinearMaxPartials} * 4;
inline constexpr std::int64_t kLinearOrderedAt =
    kLinearCounterBytes + std::int64_t{kLinearMaxPartials} * kLinearTileN * kLinearSmallRows * 4;
// Behind them rows of x in the order of weights that have one, as many as fit at a time.
inline constexpr std::int64_t kLinearOrderedBytes = std::int64_t{4} << 20;
static_assert(kLinearWorkspaceBytes == kLinearOrderedAt + kLinearOrderedBytes);
inline constexpr std::uint32_t kLinearMaxOrderedInputs = 65536;
inline constexpr std::int64_t kLinearMaxOrderedRows = 65535;  // of a launch: a grid has no more
// Rows that are put in order at a time; their bits do not depend on it.
inline std::uint32_t LinearOrderedRows(std::uint32_t k, DType x) {
  const std::int64_t fit = kLinearOrderedBytes / (std::int64_t{k} * DTypeSize(x));
  return static_cast<std::uint32_t>(fit < kLinearMaxOrderedRows ? fit : kLinearMaxOrderedRows);
}

// Where the workspace has room for rows that are rounded to codes, scales first: behind the partial
// sums, or over them in launches that exchange none.
struct Fp8RowsRoom {
  std::int64_t at;
  std::int64_t codes_at;  // behind `at`
  std::int64_t stride;    // bytes from row to row
  std::uint32_t rows;     // at a time; their bits do not depend on it
};
constexpr Fp8RowsRoom Fp8RowsRoomOf(std::uint32_t k, bool has_partials) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t at = has_partials ? kLinearOrderedAt : kLinearCounterBytes;
  const std::int64_t stride = (std::int64_t{k} + 15) / 16 * 16;
  const std::int64_t rows = (kLinearWorkspaceBytes - at - kAlignment) / (stride + 4);
  return {at, (rows * 4 + kAlignment - 1) / kAlignment * kAlignment, stride,
          static_cast<std::uint32_t>(rows)};
}
static_assert(kLinearCounterBytes % 256 == 0 && kLinearOrderedAt % 256 == 0);
static_assert(Fp8RowsRoomOf(kLinearMaxOrderedInputs, true).rows > 0);
// `rows` in equal launches of at most `most` rows, whole tiles of 128 where they hold any.
constexpr std::uint32_t EvenRows(std::uint32_t rows, std::uint32_t most) {
  if (rows <= most) return rows;
  if (most < 128) return most;
  const std::uint32_t launches = (rows + most / 128 * 128 - 1) / (most / 128 * 128);
  return (rows + launches * 128 - 1) / (launches * 128) * 128;
}

// Weights of 8 and 4 bits in memory: [feature tile][K tile][bytes of a tile]. In a tile every lane
// finds 16 bytes, the A fragments (kernels/cuda/mma.cuh) of one block of 16 features:
//   8 bits  [2 halves of 32 inputs][8 feature blocks][32 lanes][2 MMA steps][8 values]
//   4 bits  [8 feature blocks][32 lanes][4 MMA steps][8 values, the first in the lowest bits]
// Integers of 4 bits have their values in the order 0 2 4 6 1 3 5 7, so that two that lie side by
// side in a fragment are 16 bits apart.
// Value v of lane l is feature l / 4 + (v & 2 ? 8 : 0), input 2 (l % 4) + (v & 1) + (v & 4 ? 8 : 0)
// of the step. Integers without zero points are stored with 128 and 8 added. What lies beyond N and
// K is finite and meets inputs of zero, or is not stored. e4m3 that meets codes of x
// (PackedLinear::is_row_major) takes the same bytes as [padded N][padded K].
//
// Scales: one per feature f32 [padded N]; of groups [groups][padded N], f16 of integers, f32 of
// e4m3 and bf16 of e2m1. Then zero points of integers, if there are any: bytes [groups][padded N],
// within 16 features in the order 0 8 1 9 .. 7 15, in which a lane needs two at a time.

// Where these begin.
constexpr std::int64_t LinearZerosAt(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  return std::int64_t{LinearTilesN(n)} * kLinearTileN * (k / group) * 2;
}

constexpr bool HasFourBits(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kFp4E2M1;
}

QUIRE_HOST_DEVICE constexpr std::uint32_t LinearZeroIndexOf(std::uint32_t feature) {
  return feature / 16 * 16 + feature % 8 * 2 + feature % 16 / 8;
}

struct LinearPlace {
  std::uint32_t feature;  // inside the tile
  std::uint32_t input;
};
constexpr LinearPlace LinearPlaceOf(WeightFormat format, std::uint32_t value_index) {
  std::uint32_t value = value_index % 8;
  if (format == WeightFormat::kInt4) value = value % 4 * 2 + value / 4;
  std::uint32_t rest = value_index / 8;
  const std::uint32_t steps = HasFourBits(format) ? 4 : 2;
  std::uint32_t step = rest % steps;
  rest /= steps;
  const std::uint32_t lane = rest % 32;
  rest /= 32;
  const std::uint32_t block = rest % 8;
  step += rest / 8 * steps;
  return {block * 16 + lane / 4 + ((value & 2) != 0 ? 8u : 0u),
          step * 16 + lane % 4 * 2 + (value & 1) + ((value & 4) != 0 ? 8u : 0u)};
}

// Which value of a tile that is: LinearPlaceOf(format, LinearIndexOf(format, f, i)) is {f, i}. The
// sum of what a feature and an input add, each with 0 for the other.
QUIRE_HOST_DEVICE constexpr std::uint32_t LinearIndexOf(WeightFormat format, std::uint32_t feature,
                                                        std::uint32_t input) {
  const bool is_int4 = format == WeightFormat::kInt4;
  const std::uint32_t steps = is_int4 || format == WeightFormat::kFp4E2M1 ? 4 : 2;
  const std::uint32_t lane = feature % 8 * 4 + input % 8 / 2;
  std::uint32_t value = (input & 1) + (feature % 16 >= 8 ? 2u : 0u) + (input % 16 >= 8 ? 4u : 0u);
  if (is_int4) value = value / 2 + value % 2 * 4;
  const std::uint32_t step = input / 16;
  return (((step / steps * 8 + feature / 16) * 32 + lane) * steps + step % steps) * 8 + value;
}

}  // namespace quire::kernels::cuda
