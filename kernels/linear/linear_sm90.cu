// Linear on compute capability 9.0, bf16 by bf16: tiles of x and of the weights by TMA, products by
// wgmma. See README.md, "Hopper".
//
// Weights are the row operand and tokens the column operand, as in the portable tile, whose bits
// this one has: MMA steps of 16 inputs ascend from zero in each sub-range, sub-ranges are added in
// index order (linear_reduction.h). A block computes 128 features x kTokens rows over all of K. A
// warp produces: a ring of stages of 64 inputs, weights and tokens on one barrier. Two warpgroups
// consume, 64 features each; with a gate those are 64 features of the first half of the matrix and
// the 64 that they gate. One sub-range: 256 tokens, whose products take as long as reading their
// operands, 128 sums a thread. Several: 128 tokens, since sub-ranges need a second set of sums.
// Per stage of 256 tokens 48 KB arrive and 8 products read 80 KB.
//
// Two blocks with the same tokens and neighbouring features are a cluster: each copies half of the
// tokens to both, so that L2 gives 32 of the 48 KB.
//
// While rows are few, reading the weights is the work: two blocks of 64 or 128 tokens share a
// multiprocessor, and the copies of one go on while the other starts or stores.
//
// Ideas: swapped operands, TensorRT-LLM; warp roles, promotion and multicast, CUTLASS and DeepGEMM;
// blocks in groups of tiles that share operands in L2, Triton's tutorial.

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/tma_descriptor.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

using cuda::kLinearTileK;
using cuda::kLinearTileN;
using linear_tile::kHalfTile;
using linear_tile::kOutPitch;
using linear_tile::kRowBytes;
using linear_tile::kSteps;
using linear_tile::LinearArgs;
using linear_tile::Work;

// Warps 0 to 7 are the two warpgroups that consume, whose threads are those of the portable block;
// warp 8 produces.
constexpr std::uint32_t kConsumerThreads = linear_tile::kThreads;
constexpr std::uint32_t kConsumerWarps = kConsumerThreads / cuda::kWarpSize;
constexpr std::uint32_t kBlockThreads = kConsumerThreads + cuda::kWarpSize;
constexpr std::uint32_t kConsumerBarrier = 1;  // named; of both warpgroups
// Rows of weights in a box, the 64 features of a warpgroup.
constexpr std::uint32_t kBoxBytes = kHalfTile * kRowBytes;
// Tokens that blocks of neighbouring indices share weights over: what they read of x stays in L2
// while the weights pass once.
constexpr std::uint32_t kGroupTokens = 2048;
// Blocks of a cluster.
constexpr std::uint32_t kPair = 2;
constexpr std::uint16_t kBothRanks = 3;

// Shared memory: stages of 128 features and kTokens rows of x, rows of 128 bytes under the 128-byte
// swizzle, then barriers. Behind the last stage the sums lie there on their way out. kBlocks: of a
// cluster; a block alone leaves half of the multiprocessor to another.
template <std::uint32_t kTokens, std::uint32_t kBlocks>
struct Ring {
  static constexpr std::uint32_t kTokensAt = kLinearTileN * kRowBytes;  // in a stage
  static constexpr std::uint32_t kStageBytes = kTokensAt + kTokens * kRowBytes;
  static constexpr std::uint32_t kOwnTokens = kTokens / kBlocks;  // that a block copies to all
  static constexpr std::uint32_t kStages = 96 * kBlocks * 1024 / kStageBytes;
  static constexpr std::uint32_t kBarriersAt = kStages * kStageBytes;
  static constexpr std::uint32_t kBytes = kBarriersAt + 2 * kStages * sizeof(cuda::Barrier);
  static_assert(kTokens * kOutPitch * sizeof(float) <= kBarriersAt);

  std::byte* shared;

  __device__ __forceinline__ std::byte* weights(std::uint32_t stage) const {
    return shared + stage * kStageBytes;
  }
  __device__ __forceinline__ std::byte* tokens(std::uint32_t stage) const {
    return weights(stage) + kTokensAt;
  }
  __device__ __forceinline__ cuda::Barrier* full(std::uint32_t stage) const {
    return reinterpret_cast<cuda::Barrier*>(shared + kBarriersAt) + stage;
  }
  __device__ __forceinline__ cuda::Barrier* empty(std::uint32_t stage) const {
    return full(kStages + stage);
  }
};

__host__ __device__ constexpr std::uint32_t FeaturePairs(std::uint32_t n) {
  return (n + kPair * kLinearTileN - 1) / (kPair * kLinearTileN);
}

// Clusters in groups of kGroupTokens, in a group all tiles of tokens for each pair of tiles of
// features, the second of which may have none.
template <std::uint32_t kTokens>
__device__ __forceinline__ Work OwnWork(const LinearArgs& args) {
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
  work.tile_end = (args.k + kLinearTileK - 1) / kLinearTileK;
  return work;
}

// All stages of a block, by one thread.
template <std::uint32_t kTokens, std::uint32_t kBlocks>
__device__ __forceinline__ void Produce(const LinearArgs& args, const CUtensorMap* weights,
                                        const CUtensorMap* tokens,
                                        const Ring<kTokens, kBlocks>& ring, const Work& work) {
  using R = Ring<kTokens, kBlocks>;
  const auto load_weights = [&](std::uint32_t tile, std::uint32_t stage) {
    cuda::BarrierExpect(ring.full(stage), R::kStageBytes);
    const auto input = static_cast<std::int32_t>(tile * kLinearTileK);
    cuda::TmaLoad2D(ring.weights(stage), weights, ring.full(stage), input,
                    static_cast<std::int32_t>(work.n0), cuda::L2Hint::kNormal);
    cuda::TmaLoad2D(ring.weights(stage) + kBoxBytes, weights, ring.full(stage), input,
                    static_cast<std::int32_t>(work.n0 + kHalfTile + args.up_distance),
                    cuda::L2Hint::kNormal);
  };
  const std::uint32_t own = cuda::BlockX() % kBlocks * R::kOwnTokens;
  const auto load_tokens = [&](std::uint32_t tile, std::uint32_t stage) {
    const auto input = static_cast<std::int32_t>(tile * kLinearTileK);
    const auto row = static_cast<std::int32_t>(work.m0 + own);
    if constexpr (kBlocks == 1) {
      cuda::TmaLoad2D(ring.tokens(stage), tokens, ring.full(stage), input, row,
                      cuda::L2Hint::kNormal);
    } else {
      cuda::TmaMulticast2D(ring.tokens(stage) + own * kRowBytes, tokens, ring.full(stage), input,
                           row, kBothRanks);
    }
  };
  const std::uint32_t at_once = work.tile_end < R::kStages ? work.tile_end : R::kStages;
  for (std::uint32_t tile = 0; tile < at_once; ++tile) load_weights(tile, tile);
  cuda::DependencyWait();
  for (std::uint32_t tile = 0; tile < at_once; ++tile) load_tokens(tile, tile);
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  // In a cluster the last turns only wait: then both blocks are done with what this one copies and
  // counts.
  const std::uint32_t turns_end = kBlocks == 1 ? work.tile_end : work.tile_end + at_once;
#pragma unroll 1
  for (std::uint32_t tile = at_once; tile < turns_end; ++tile) {
    cuda::BarrierWait(ring.empty(stage), parity);
    if (tile < work.tile_end) {
      load_weights(tile, stage);
      load_tokens(tile, stage);
    }
    if (++stage == R::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// The sums of a block, 64 features a warpgroup; sums[4 j + i] of a thread is feature
// 16 warp + lane / 4 + 8 (i / 2), token 8 j + 2 (lane % 4) + i % 2 of the tile.
template <std::uint32_t kTokens, bool kPromote, std::uint32_t kBlocks>
__device__ __forceinline__ void Consume(const LinearArgs& args, const Ring<kTokens, kBlocks>& ring,
                                        const Work& work) {
  using R = Ring<kTokens, kBlocks>;
  constexpr std::uint32_t kSums = kTokens / 2;
  const std::uint32_t group = cuda::Warp() / 4;
  const std::uint64_t first_a = cuda::WgmmaDescriptor(ring.weights(0) + group * kBoxBytes, 0, 1024,
                                                      cuda::SharedSwizzle::k128B);
  const std::uint64_t first_b =
      cuda::WgmmaDescriptor(ring.tokens(0), 0, 1024, cuda::SharedSwizzle::k128B);
  // A stage is free again once the products of the next one are under way, for the copies of all
  // blocks.
  const auto release = [&ring](std::uint32_t stage) {
    if (cuda::Lane() != 0) return;
    if constexpr (kBlocks == 1) {
      cuda::BarrierArrive(ring.empty(stage));
    } else {
      for (std::uint32_t rank = 0; rank < kBlocks; ++rank) {
        cuda::BarrierArriveIn(rank, ring.empty(stage));
      }
    }
  };
  float sums[kSums];
  [[maybe_unused]] float total[kPromote ? kSums : 1];
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  std::uint32_t before = 0;  // the stage in front
  std::uint32_t tile = 0;
  while (tile < work.tile_end) {
    const bool is_first = tile == 0;
    const std::uint32_t begin = tile;
    const std::uint32_t left = work.tile_end - tile;
    const std::uint32_t end = tile + (left < args.tiles_per_split ? left : args.tiles_per_split);
#pragma unroll
    for (std::uint32_t i = 0; i < kSums; ++i) sums[i] = 0;
    cuda::WgmmaPin(sums);
    // Not unrolled: the products of a stage hide what a turn of the loop costs.
#pragma unroll 1
    for (; tile < end; ++tile) {
      cuda::BarrierWait(ring.full(stage), parity);
      const std::uint64_t a = first_a + stage * (R::kStageBytes / 16);
      const std::uint64_t b = first_b + stage * (R::kStageBytes / 16);
      cuda::WgmmaFence();
#pragma unroll
      for (std::uint32_t step = 0; step < kSteps; ++step) {
        cuda::WgmmaShared<BF16, kTokens>(sums, a + step * 2, b + step * 2, true);
      }
      cuda::WgmmaCommit();
      cuda::WgmmaWait<1>();
      if (tile != begin) release(before);
      before = stage;
      if (++stage == R::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(sums);
    release(before);
    if constexpr (kPromote) {
#pragma unroll
      for (std::uint32_t i = 0; i < kSums; ++i) {
        total[i] = is_first ? sums[i] : cuda::Add(total[i], sums[i]);
      }
    }
  }
  // Both warpgroups are past their last stage, and every copy has arrived: the ring becomes the
  // output tile.
  cuda::NamedSync(kConsumerBarrier, kConsumerThreads);
  auto* const out = reinterpret_cast<float*>(ring.shared);
  const std::uint32_t feature = cuda::Warp() * 16 + cuda::Lane() / 4;
#pragma unroll
  for (std::uint32_t i = 0; i < kSums; ++i) {
    const std::uint32_t token = i / 4 * 8 + cuda::Lane() % 4 * 2 + i % 2;
    float sum;
    if constexpr (kPromote) {
      sum = total[i];
    } else {
      sum = sums[i];
    }
    out[token * kOutPitch + feature + i / 2 % 2 * 8] = sum;
  }
  cuda::NamedSync(kConsumerBarrier, kConsumerThreads);
  // y may be what the kernel in front reads, and a residual what it wrote.
  cuda::DependencyWait();
  if (work.feature_tile * kLinearTileN < args.n) linear_tile::StoreRows<kTokens>(out, args, work);
}

template <std::uint32_t kTokens, bool kPromote, std::uint32_t kBlocks>
__global__ void __launch_bounds__(kBlockThreads, kBlocks == 1 ? 2 : 1)
    LinearKernelSm90(const __grid_constant__ LinearArgs args,
                     const __grid_constant__ CUtensorMap weights,
                     const __grid_constant__ CUtensorMap tokens) {
  using R = Ring<kTokens, kBlocks>;
  cuda::DependencyLaunch();
  const R ring{cuda::SharedMemory()};
  if (cuda::ThreadIndex() == 0) {
    for (std::uint32_t stage = 0; stage < R::kStages; ++stage) {
      cuda::BarrierInit(ring.full(stage), 1);
      cuda::BarrierInit(ring.empty(stage), kBlocks * kConsumerWarps);
    }
    cuda::BarrierInitFence();
    cuda::TmaPrefetchMap(&weights);
    cuda::TmaPrefetchMap(&tokens);
  }
  Work work;
  if constexpr (kBlocks == 1) {
    cuda::SyncBlock();
    work = linear_tile::WorkOf<kTokens>(args);
  } else {
    cuda::ClusterSync();
    work = OwnWork<kTokens>(args);
  }
  if (cuda::Warp() == kConsumerWarps) {
    if (cuda::Lane() == 0) Produce(args, &weights, &tokens, ring, work);
  } else {
    Consume<kTokens, kPromote>(args, ring, work);
  }
}

// [rows, k] of bf16 in boxes of `box_rows` rows and 64 columns, zeros outside.
absl::StatusOr<cuda::TmaTile> MapOf(const void* matrix, std::uint32_t rows, std::uint32_t k,
                                    std::int64_t stride, std::uint32_t box_rows) {
  return cuda::EncodeTma({.builder = "linear",
                          .base = matrix,
                          .dtype = DType::kBF16,
                          .rank = 2,
                          .extents = {k, rows},
                          .strides = {static_cast<std::uint64_t>(stride) * 2},
                          .box = {kLinearTileK, box_rows},
                          .swizzle = cuda::TmaSwizzle::k128B,
                          .l2 = cuda::TmaL2Promotion::k256B,
                          .tile = {box_rows, 1, kLinearTileK}});
}

absl::Status CheckClusters(const CudaContext& context) {
  int has_clusters = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch,
                                                   context.stream->device().ordinal);
  if (error != cudaSuccess) return CudaStatus(error, "cudaDevAttrClusterLaunch");
  if (has_clusters == 0) return absl::FailedPreconditionError("the device has no clusters");
  return absl::OkStatus();
}

// False, and the log says why, where the device has not what the kernel needs.
template <std::uint32_t kTokens, bool kPromote, std::uint32_t kBlocks>
absl::StatusOr<bool> LaunchTile(const CudaContext& context, const LinearArgs& args) {
  using R = Ring<kTokens, kBlocks>;
  const auto weights = MapOf(args.w, args.n, args.k, args.k, kHalfTile);
  const auto tokens = MapOf(args.x, args.num_rows, args.k, args.x_stride, R::kOwnTokens);
  const absl::Status clusters = kBlocks == 1 ? absl::OkStatus() : CheckClusters(context);
  for (const absl::Status& status : {weights.status(), tokens.status(), clusters}) {
    if (status.ok()) continue;
    internal::LogPortable(status);
    return false;
  }
  const std::uint32_t token_tiles = (args.num_rows + kTokens - 1) / kTokens;
  cuda::LaunchShape shape{.threads = kBlockThreads,
                          .shared_bytes = R::kBytes + cuda::kSharedAlignment,
                          .programmatic = true};
  if (kBlocks == 1) {
    shape.blocks_x = cuda::LinearTilesN(args.n);
    shape.blocks_y = token_tiles;
  } else {
    shape.blocks_x = kPair * FeaturePairs(args.n) * token_tiles;
    shape.cluster_x = kPair;
  }
  QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "linear sm_90a",
                                     LinearKernelSm90<kTokens, kPromote, kBlocks>, shape, args,
                                     weights->map(), tokens->map()));
  return true;
}

}  // namespace

namespace internal {

absl::StatusOr<bool> LinearSm90Cuda(const CudaContext& context, const LinearParams& params) {
  QUIRE_ASSIGN_OR_RETURN(const LinearArgs args, linear_tile::ArgsOf(context, params));
  if (args.tiles_per_split < cuda::LinearTilesK(args.k)) {
    return LaunchTile<128, true, kPair>(context, args);
  }
  if (args.num_rows <= 64) return LaunchTile<64, false, 1>(context, args);
  const std::uint32_t tiles = cuda::LinearTilesN(args.n) * ((args.num_rows + 127) / 128);
  if (args.num_rows <= 128 || tiles <= 2 * context.num_sms) {
    return LaunchTile<128, false, 1>(context, args);
  }
  return LaunchTile<256, false, kPair>(context, args);
}

}  // namespace internal
}  // namespace quire::kernels
