#pragma once

// Code shared by the matrix kernels for compute capability 9.0. It contains the ring of stages in
// shared memory, the producer warp that fills the ring by TMA, clusters of two blocks, and tensor
// maps. The kernels that consume the stages are in linear_sm90.cu and linear_fp8_sm90.cu.

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/tma_descriptor.h"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels::linear_sm90 {

using cuda::kLinearTileN;
using linear_tile::kHalfTile;
using linear_tile::kOutPitch;
using linear_tile::kRowBytes;
using linear_tile::LinearArgs;
using linear_tile::Work;

// Warps 0 to 7 are the two consumer warpgroups, which together have as many threads as a block of
// the portable kernel. Warp 8 is the producer.
inline constexpr std::uint32_t kConsumerThreads = linear_tile::kThreads;
inline constexpr std::uint32_t kConsumerWarps = kConsumerThreads / cuda::kWarpSize;
inline constexpr std::uint32_t kBlockThreads = kConsumerThreads + cuda::kWarpSize;
inline constexpr std::uint32_t kConsumerBarrier = 1;  // named barrier of both consumer warpgroups
// Bytes of a TMA box of weights, which contains the 64 features of a warpgroup.
inline constexpr std::uint32_t kBoxBytes = kHalfTile * kRowBytes;
// Number of tokens for which consecutive blocks share weights. The rows of x of these tokens stay
// in L2 while the weights are read once.
inline constexpr std::uint32_t kGroupTokens = 2048;
// Blocks per cluster.
inline constexpr std::uint32_t kPair = 2;
inline constexpr std::uint16_t kBothRanks = 3;

// Shared memory of a block: stages, then barriers. A stage has 128 features of the weights and
// kTokens rows of x, as rows of 128 bytes in the 128-byte swizzle. After the last stage the output
// tile overwrites the stages. kBlocks is the number of blocks in a cluster. A block without a
// cluster uses at most half of the multiprocessor's shared memory, so that two blocks fit.
template <std::uint32_t kTokens, std::uint32_t kBlocks>
struct Ring {
  static constexpr std::uint32_t kTokensAt = kLinearTileN * kRowBytes;  // offset in a stage
  static constexpr std::uint32_t kStageBytes = kTokensAt + kTokens * kRowBytes;
  static constexpr std::uint32_t kOwnTokens = kTokens / kBlocks;  // tokens that each block copies
  static constexpr std::uint32_t kStages = 96 * kBlocks * 1024 / kStageBytes;
  static constexpr std::uint32_t kBarriersAt = kStages * kStageBytes;
  static constexpr std::uint32_t kBytes = kBarriersAt + sizeof(cuda::PipelineBarriers<kStages>);
  static_assert(kTokens * kOutPitch * sizeof(float) <= kBarriersAt);

  std::byte* shared;

  __device__ __forceinline__ std::byte* weights(std::uint32_t stage) const {
    return shared + stage * kStageBytes;
  }
  __device__ __forceinline__ std::byte* tokens(std::uint32_t stage) const {
    return weights(stage) + kTokensAt;
  }
  __device__ __forceinline__ cuda::PipelineBarriers<kStages>* barriers() const {
    return reinterpret_cast<cuda::PipelineBarriers<kStages>*>(shared + kBarriersAt);
  }
  __device__ __forceinline__ cuda::Barrier* full(std::uint32_t stage) const {
    return &barriers()->full[stage];
  }
  __device__ __forceinline__ cuda::Barrier* empty(std::uint32_t stage) const {
    return &barriers()->empty[stage];
  }
};

__host__ __device__ constexpr std::uint32_t FeaturePairs(std::uint32_t n) {
  return (n + kPair * kLinearTileN - 1) / (kPair * kLinearTileN);
}

// Returns the work of a block of a cluster. Clusters are ordered by groups of kGroupTokens tokens,
// then by pairs of feature tiles, then by token tiles. The second feature tile of the last pair may
// be beyond N. `tiles` is the number of tiles of K.
template <std::uint32_t kTokens>
__device__ __forceinline__ Work PairWork(const LinearArgs& args, std::uint32_t tiles) {
  constexpr std::uint32_t kGroupTiles = kGroupTokens / kTokens;
  const std::uint32_t token_tiles = (args.num_rows + kTokens - 1) / kTokens;
  const std::uint32_t group_pairs = kGroupTiles * FeaturePairs(args.n);
  const std::uint32_t pair = cuda::BlockX() / kPair;
  const std::uint32_t first = pair / group_pairs * kGroupTiles;
  const std::uint32_t in_group = pair % group_pairs;
  const std::uint32_t width = token_tiles - first < kGroupTiles ? token_tiles - first : kGroupTiles;
  Work work{};
  work.feature_tile = in_group / width * kPair + cuda::BlockX() % kPair;
  work.n0 = work.feature_tile * (args.has_gate ? kHalfTile : kLinearTileN);
  work.m0 = (first + in_group % width) * kTokens;
  work.tile_end = tiles;
  return work;
}

// Copies all stages of a block. One thread calls this function. A stage has 128 bytes per row,
// which are kInputs inputs.
template <std::uint32_t kInputs, std::uint32_t kTokens, std::uint32_t kBlocks>
__device__ __forceinline__ void Produce(const LinearArgs& args, const CUtensorMap* weights,
                                        const CUtensorMap* tokens,
                                        const Ring<kTokens, kBlocks>& ring, const Work& work) {
  using R = Ring<kTokens, kBlocks>;
  const auto load_weights = [&](std::uint32_t tile, std::uint32_t stage) {
    cuda::BarrierExpect(ring.full(stage), R::kStageBytes);
    const auto input = static_cast<std::int32_t>(tile * kInputs);
    cuda::TmaLoad2D(ring.weights(stage), weights, ring.full(stage), input,
                    static_cast<std::int32_t>(work.n0), cuda::L2Hint::kNormal);
    cuda::TmaLoad2D(ring.weights(stage) + kBoxBytes, weights, ring.full(stage), input,
                    static_cast<std::int32_t>(work.n0 + kHalfTile + args.up_distance),
                    cuda::L2Hint::kNormal);
  };
  const std::uint32_t own = cuda::BlockX() % kBlocks * R::kOwnTokens;
  const auto load_tokens = [&](std::uint32_t tile, std::uint32_t stage) {
    const auto input = static_cast<std::int32_t>(tile * kInputs);
    const auto row = static_cast<std::int32_t>(work.m0 + own);
    if constexpr (kBlocks == 1) {
      cuda::TmaLoad2D(ring.tokens(stage), tokens, ring.full(stage), input, row,
                      cuda::L2Hint::kNormal);
    } else {
      cuda::TmaMulticast2D(ring.tokens(stage) + own * kRowBytes, tokens, ring.full(stage), input,
                           row, kBothRanks);
    }
  };
  const std::uint32_t tiles = work.tile_end - work.tile_begin;
  const std::uint32_t at_once = tiles < R::kStages ? tiles : R::kStages;
  for (std::uint32_t i = 0; i < at_once; ++i) load_weights(work.tile_begin + i, i);
  cuda::DependencyWait();
  for (std::uint32_t i = 0; i < at_once; ++i) load_tokens(work.tile_begin + i, i);
  cuda::PipelineCursor<R::kStages> cursor;  // cursor of the tile whose stage is reused
  // In a cluster the last iterations only wait until both blocks have consumed all stages. A block
  // must not exit while the other block still uses its copies and barriers.
  const std::uint32_t turns_end = kBlocks == 1 ? work.tile_end : work.tile_end + at_once;
#pragma unroll 1
  for (std::uint32_t tile = work.tile_begin + at_once; tile < turns_end; ++tile) {
    cuda::BarrierWait(ring.empty(cursor.stage), cursor.parity);
    if (tile < work.tile_end) {
      load_weights(tile, cursor.stage);
      load_tokens(tile, cursor.stage);
    }
    cursor.Advance();
  }
}

// Initializes the barriers of a block. One thread calls this function.
template <typename R>
__device__ __forceinline__ void InitBarriers(const R& ring, std::uint32_t blocks) {
  ring.barriers()->Init(1, blocks * kConsumerWarps);
  cuda::BarrierInitFence();
}

// Releases a stage to the producers of all blocks of the cluster. Every consumer warp calls this
// function after the stage's wgmmas have completed.
template <std::uint32_t kTokens, std::uint32_t kBlocks>
__device__ __forceinline__ void Release(const Ring<kTokens, kBlocks>& ring, std::uint32_t stage) {
  if (cuda::Lane() != 0) return;
  if constexpr (kBlocks == 1) {
    cuda::BarrierArrive(ring.empty(stage));
  } else {
    for (std::uint32_t rank = 0; rank < kBlocks; ++rank) {
      cuda::BarrierArriveIn(rank, ring.empty(stage));
    }
  }
}

struct MappedRows {
  const void* data;  // [rows, k]
  DType dtype;
  std::uint32_t rows;
  std::uint32_t k;
  std::int64_t stride;  // elements
};
// Creates a tensor map with boxes of `box_rows` rows and 128 bytes. Elements beyond the matrix are
// read as zeros.
inline absl::StatusOr<cuda::TmaTile> MapOf(const MappedRows& matrix, std::uint32_t box_rows) {
  const auto size = static_cast<std::uint32_t>(DTypeSize(matrix.dtype));
  const std::uint32_t columns = linear_tile::kRowBytes / size;
  return cuda::EncodeTma({.builder = "linear",
                          .base = matrix.data,
                          .dtype = matrix.dtype,
                          .rank = 2,
                          .extents = {matrix.k, matrix.rows},
                          .strides = {static_cast<std::uint64_t>(matrix.stride) * size},
                          .box = {columns, box_rows},
                          .swizzle = cuda::TmaSwizzle::k128B,
                          .l2 = cuda::TmaL2Promotion::k256B,
                          .tile = {box_rows, 1, columns}});
}

}  // namespace quire::kernels::linear_sm90
