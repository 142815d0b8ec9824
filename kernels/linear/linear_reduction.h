#pragma once

// Tiles, the order of summation, and the layout of quantized weights of Linear on CUDA. Packing,
// launches, kernels and tests share these definitions, on host and device.
//
// The sum over K consists of tiles of 64 inputs. The tiles are divided into `splits` sub-ranges of
// `tiles_per_split` tiles each. The last sub-range may be shorter. Inside a sub-range, MMA steps of
// 16 inputs are summed in ascending order from zero. Sub-ranges are added in index order. If groups
// of inputs have scales, the steps of one group and tile are summed from zero, multiplied by the
// scale and added to the sub-range's sum. A single scale per feature multiplies the sum of each
// sub-range. The order depends only on N, K and the group, so kernels may compute the sub-ranges in
// one block or in several.

#include <cstdint>

#include "base/dtype.h"
#include "base/host_device.h"
#include "base/weight_format.h"
#include "kernels/cuda/context.h"

namespace quire::kernels::cuda {

inline constexpr std::uint32_t kLinearTileN = 128;  // output features per block
inline constexpr std::uint32_t kLinearTileK = 64;   // inputs per pipeline stage
// Maximum number of rows of a block that computes only one sub-range of K. Launches with at most
// this number of rows split K among blocks.
inline constexpr std::uint32_t kLinearSmallRows = 64;
// Number of blocks that saturates the memory bandwidth of a large GPU.
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

// Chooses the number of sub-ranges, a power of two. It is large enough for kLinearFillBlocks
// blocks, unless a sub-range would become shorter than kLinearMinTilesPerSplit tiles.
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

// Products of e4m3 by e4m3 have tiles of 128 inputs. The MMA steps of 32 inputs in a tile are
// summed from zero, multiplied by the scale of the weights and added to the sub-range's sum in one
// rounding. Sub-ranges are rounded to whole tiles and added in index order.
inline constexpr std::uint32_t kFp8TileK = 128;
constexpr LinearReduction Fp8ReductionOf(std::uint32_t n, std::uint32_t k) {
  const std::uint32_t tiles = (k + kFp8TileK - 1) / kFp8TileK;
  const std::uint32_t each =
      (LinearReductionOf(n, k).tiles_per_split * kLinearTileK + kFp8TileK - 1) / kFp8TileK;
  return {(tiles + each - 1) / each, each};
}

// GroupedLinear uses small tiles if groups have few rows.
inline constexpr std::uint32_t kFewGroupRows = 8;
constexpr bool HasFewGroupRows(std::uint32_t rows, std::uint32_t groups) {
  return rows <= std::uint64_t{kFewGroupRows} * groups;
}

// Device memory for partial sums that blocks exchange, zeroed once. It contains counters, then a
// tile of kLinearTileN x kLinearSmallRows f32 sums for each block of a launch that splits K among
// blocks. Such a launch has fewer than 2 * kLinearFillBlocks blocks for each kLinearSmallRows rows,
// so the memory suffices for at least 2 * kLinearSmallRows rows.
inline constexpr std::uint32_t kLinearMaxPartials = 4 * kLinearFillBlocks;
inline constexpr std::int64_t kLinearCounterBytes = std::int64_t{kLinearMaxPartials} * 4;
inline constexpr std::int64_t kLinearPermutedOffset =
    kLinearCounterBytes + std::int64_t{kLinearMaxPartials} * kLinearTileN * kLinearSmallRows * 4;
// The partial sums are followed by permuted rows of x, for weights with an act-order permutation.
inline constexpr std::int64_t kLinearPermutedBytes = std::int64_t{4} << 20;
static_assert(kLinearWorkspaceBytes == kLinearPermutedOffset + kLinearPermutedBytes);
inline constexpr std::uint32_t kLinearMaxPermutedInputs = 65536;
inline constexpr std::int64_t kLinearMaxPermutedRows = 65535;  // limit of a grid's dimension
// Returns the number of rows that are permuted at a time. It does not affect bits.
inline std::uint32_t LinearPermutedRowsPerPass(std::uint32_t k, DType x) {
  const std::int64_t fit = kLinearPermutedBytes / (std::int64_t{k} * DTypeSize(x));
  return static_cast<std::uint32_t>(fit < kLinearMaxPermutedRows ? fit : kLinearMaxPermutedRows);
}

// The location in the workspace of rows that were quantized to e4m3. The scales of the rows come
// first. Scales and rows follow the partial sums, or overlap them in launches without partial sums.
struct Fp8RowsWorkspace {
  std::int64_t at;        // offset in the workspace
  std::int64_t codes_at;  // offset from `at`
  std::int64_t stride;    // bytes between rows
  std::uint32_t rows;     // rows that are quantized at a time; does not affect bits
};
constexpr Fp8RowsWorkspace Fp8RowsWorkspaceOf(std::uint32_t k, bool has_partials) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t at = has_partials ? kLinearPermutedOffset : kLinearCounterBytes;
  const std::int64_t stride = (std::int64_t{k} + 15) / 16 * 16;
  const std::int64_t rows = (kLinearWorkspaceBytes - at - kAlignment) / (stride + 4);
  return {at, (rows * 4 + kAlignment - 1) / kAlignment * kAlignment, stride,
          static_cast<std::uint32_t>(rows)};
}
static_assert(kLinearCounterBytes % 256 == 0 && kLinearPermutedOffset % 256 == 0);
static_assert(Fp8RowsWorkspaceOf(kLinearMaxPermutedInputs, true).rows > 0);
// Returns the number of rows per launch if `rows` are divided into equal launches of at most
// `limit` rows. The result is a multiple of 128 if possible.
constexpr std::uint32_t RowsPerLaunch(std::uint32_t rows, std::uint32_t limit) {
  if (rows <= limit) return rows;
  if (limit < 128) return limit;
  const std::uint32_t launches = (rows + limit / 128 * 128 - 1) / (limit / 128 * 128);
  return (rows + launches * 128 - 1) / (launches * 128) * 128;
}

// Layout of weights of 8 and 4 bits: [feature tile][K tile][bytes of a tile]. In a tile, each lane
// loads 16 bytes, which contain A fragments (kernels/cuda/mma.cuh) of a block of 16 features:
//   8 bits  [2 halves of 32 inputs][8 feature blocks][32 lanes][2 MMA steps][8 values]
//   4 bits  [8 feature blocks][32 lanes][4 MMA steps][8 values, the first in the lowest bits]
// Integers of 4 bits are stored in the order 0 2 4 6 1 3 5 7, so that two values that are adjacent
// in a fragment are 16 bits apart. Value v of lane l is feature l / 4 + (v & 2 ? 8 : 0), input 2 (l
// % 4) + (v & 1) + (v & 4 ? 8 : 0) of the step. Integers without zero points are stored with 128 or
// 8 added. Padding beyond N and K is finite. It is multiplied by inputs of zero, or its outputs are
// not stored. Row-major e4m3 weights (PackedLinear::has_row_major_fp8) use the same memory as
// [padded N][padded K].
//
// Scales: [padded N] in f32 if there is one scale per feature. Otherwise [groups][padded N] in f16
// for integers, f32 for e4m3 and bf16 for e2m1. Zero points of integers follow: bytes
// [groups][padded N]. Each 16 features are in the order 0 8 1 9 .. 7 15, because a lane loads the
// zero points of features f and f + 8 together.

// Returns the offset of the zero points.
constexpr std::int64_t LinearZerosAt(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  return std::int64_t{LinearTilesN(n)} * kLinearTileN * (k / group) * 2;
}

constexpr bool HasFourBits(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kFp4E2M1;
}

QUIRE_HOST_DEVICE constexpr std::uint32_t LinearZeroIndexOf(std::uint32_t feature) {
  return feature / 16 * 16 + feature % 8 * 2 + feature % 16 / 8;
}

// Returns the index of a value in a tile. It is the sum of LinearIndexOf(format, feature, 0) and
// LinearIndexOf(format, 0, input).
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
