// Linear on compute capability 9.0, bf16 by bf16, with TMA copies and wgmma. See README.md,
// "Hopper".
//
// Weights are operand A and tokens are operand B, as in the portable tile. The order of sums is
// also that of the portable tile (linear_reduction.h), so the bits are the same.
//
// A block computes 128 features x kTokens rows over all of K. A producer warp fills a ring of
// stages of 64 inputs. Each stage has one barrier for its weights and tokens. Two consumer
// warpgroups compute 64 features each. With a gate, the first warpgroup has 64 features of the
// first half of the matrix and the second has the 64 features that they gate.
//
// If a block sums K in one sub-range (linear_reduction.h), it has 256 tokens and 128 sums per
// thread. The wgmmas then take as long as reading their operands. With several sub-ranges, a block
// has 128 tokens, because it needs a second set of sums. In a stage of 256 tokens, 48 KB are
// copied, and 8 wgmmas read 80 KB.
//
// Two blocks with the same tokens and adjacent features are a cluster. Each block copies half of
// the tokens to both blocks, so that only 32 of the 48 KB come from L2.
//
// With few rows, reading the weights takes most of the time. Then two blocks of 64 or 128 tokens
// share a multiprocessor, so that one block copies while the other one starts or stores.
//
// Swapped operands are from TensorRT-LLM. Warp roles, promotion and multicast are from CUTLASS and
// DeepGEMM. Ordering blocks in groups of tiles that share operands in L2 is from Triton's tutorial.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_sm90.cuh"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

using cuda::kLinearTileK;
using cuda::kLinearTileN;
using linear_sm90::FeaturePairs;
using linear_sm90::kBlockThreads;
using linear_sm90::kBoxBytes;
using linear_sm90::kConsumerBarrier;
using linear_sm90::kConsumerThreads;
using linear_sm90::kConsumerWarps;
using linear_sm90::kPair;
using linear_sm90::MapOf;
using linear_sm90::Release;
using linear_sm90::Ring;
using linear_tile::kHalfTile;
using linear_tile::kOutPitch;
using linear_tile::kSteps;
using linear_tile::LinearArgs;
using linear_tile::Work;

// Computes and stores the sums of a block, with 64 features per warpgroup. sums[4 j + i] of a
// thread is the sum of feature 16 warp + lane / 4 + 8 (i / 2) and token 8 j + 2 (lane % 4) + i % 2
// of the tile.
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
  float sums[kSums];
  [[maybe_unused]] float total[kPromote ? kSums : 1];
  cuda::PipelineCursor<R::kStages> cursor;
  std::uint32_t previous_stage = 0;
  std::uint32_t tile = 0;
  while (tile < work.tile_end) {
    const bool is_first = tile == 0;
    const std::uint32_t begin = tile;
    const std::uint32_t left = work.tile_end - tile;
    const std::uint32_t end = tile + (left < args.tiles_per_split ? left : args.tiles_per_split);
#pragma unroll
    for (std::uint32_t i = 0; i < kSums; ++i) sums[i] = 0;
    cuda::WgmmaPin(sums);
    // Not unrolled, because the wgmmas of a stage hide the overhead of an iteration.
#pragma unroll 1
    for (; tile < end; ++tile) {
      cuda::BarrierWait(ring.full(cursor.stage), cursor.parity);
      const std::uint64_t a = first_a + cursor.stage * (R::kStageBytes / 16);
      const std::uint64_t b = first_b + cursor.stage * (R::kStageBytes / 16);
      cuda::WgmmaFence();
#pragma unroll
      for (std::uint32_t step = 0; step < kSteps; ++step) {
        cuda::WgmmaShared<kTokens>(sums, a + step * 2, b + step * 2, true);
      }
      cuda::WgmmaCommit();
      cuda::WgmmaWait<1>();
      // At most the wgmmas of this stage are pending now, so the wgmmas of the previous stage have
      // completed.
      if (tile != begin) Release(ring, previous_stage);
      previous_stage = cursor.stage;
      cursor.Advance();
    }
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(sums);
    Release(ring, previous_stage);
    if constexpr (kPromote) {
#pragma unroll
      for (std::uint32_t i = 0; i < kSums; ++i) {
        total[i] = is_first ? sums[i] : cuda::Add(total[i], sums[i]);
      }
    }
  }
  // After this barrier, both warpgroups have finished their last stage and every copy has arrived,
  // so the output tile can overwrite the ring.
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
  // The previous kernel may read y, and may write the residual.
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
    linear_sm90::InitBarriers(ring, kBlocks);
    cuda::TmaPrefetchMap(&weights);
    cuda::TmaPrefetchMap(&tokens);
  }
  Work work;
  if constexpr (kBlocks == 1) {
    cuda::SyncBlock();
    work = linear_tile::WorkOf<kTokens>(args);
  } else {
    cuda::ClusterSync();
    work = linear_sm90::PairWork<kTokens>(args, cuda::LinearTilesK(args.k));
  }
  if (cuda::Warp() == kConsumerWarps) {
    if (cuda::Lane() == 0) linear_sm90::Produce<kLinearTileK>(args, &weights, &tokens, ring, work);
  } else {
    Consume<kTokens, kPromote>(args, ring, work);
  }
}

// Returns false and logs the reason if the driver cannot create a tensor map of x.
template <std::uint32_t kTokens, bool kPromote, std::uint32_t kBlocks>
absl::StatusOr<bool> LaunchTile(const CudaContext& context, const LinearArgs& args,
                                const cuda::TmaTile& weights) {
  using R = Ring<kTokens, kBlocks>;
  const auto tokens =
      MapOf({args.x, DType::kBF16, args.num_rows, args.k, args.x_stride}, R::kOwnTokens);
  if (!tokens.ok()) {
    internal::LogPortableFallback(tokens.status());
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
                                     weights.map(), tokens->map()));
  return true;
}

}  // namespace

namespace internal {

absl::StatusOr<WeightMap> MapWeightsSm90(const CudaContext& context,
                                         const WeightRowsShape& weight) {
  int has_clusters = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch,
                                                          context.stream->device().ordinal),
                                   "cudaDevAttrClusterLaunch"));
  if (has_clusters == 0)
    return absl::FailedPreconditionError("the device does not support thread block clusters");
  const std::int64_t stride = weight.dtype == DType::kBF16
                                  ? std::int64_t{weight.k}
                                  : std::int64_t{cuda::LinearTilesK(weight.k)} * kLinearTileK;
  QUIRE_ASSIGN_OR_RETURN(const cuda::TmaTile map,
                         MapOf({weight.data, weight.dtype, weight.n, weight.k, stride}, kHalfTile));
  return std::make_shared<const cuda::TmaTile>(map);
}

absl::StatusOr<bool> LinearSm90Cuda(const CudaContext& context, const LinearParams& params) {
  const cuda::TmaTile* const map = params.weight->map();
  if (map == nullptr) return false;
  QUIRE_ASSIGN_OR_RETURN(const LinearArgs args, linear_tile::ArgsOf(context, params));
  if (args.tiles_per_split < cuda::LinearTilesK(args.k)) {
    return LaunchTile<128, true, kPair>(context, args, *map);
  }
  if (args.num_rows <= 64) return LaunchTile<64, false, 1>(context, args, *map);
  const std::uint32_t tiles = cuda::LinearTilesN(args.n) * ((args.num_rows + 127) / 128);
  if (args.num_rows <= 128 || tiles <= 2 * context.num_sms) {
    return LaunchTile<128, false, 1>(context, args, *map);
  }
  return LaunchTile<256, false, kPair>(context, args, *map);
}

}  // namespace internal
}  // namespace quire::kernels
