// Linear on compute capability 9.0, e4m3 by e4m3. Row-major weights are multiplied by rows of x
// that a previous launch quantized (fp8_rows.h). See README.md, "Hopper".
//
// Tiles, the ring of stages, warp roles and pairs of blocks are those of linear_sm90.cuh. A stage
// has 128 inputs, which are as many bytes as 64 bf16 inputs.
//
// wgmma keeps about 14 bits of a sum of e4m3 products. The sum of a stage therefore starts at zero
// and is added to an f32 total by an FMA with the scale of its weights. A thread has at most 64
// wgmma sums and kTokens / 2 totals. To fit in registers, 256 tokens are multiplied 128 at a time,
// and the weights are read twice from shared memory. While one warpgroup adds to its totals, the
// tensor cores multiply for the other warpgroup.
//
// If there are several sub-ranges of K (Fp8ReductionOf), a third set of sums is needed, and
// registers suffice only for 128 tokens. With few rows each sub-range has a separate block, and the
// last block adds the partial sums in order. The order of sums is the same in all tiles, so the
// bits of a row do not depend on the tile.
//
// In a stage of 256 tokens, 48 KB are copied, and 16 wgmmas read 96 KB in 1024 tensor core cycles.
// The bf16 kernel takes twice as long for the same number of inputs.
//
// The addition to f32 totals after each 128 inputs is from DeepGEMM.

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/linear_sm90.cuh"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

using cuda::kFp8TileK;
using cuda::kLinearTileN;
using linear_sm90::kBlockThreads;
using linear_sm90::kBoxBytes;
using linear_sm90::kConsumerBarrier;
using linear_sm90::kConsumerThreads;
using linear_sm90::kConsumerWarps;
using linear_sm90::kPair;
using linear_sm90::MapOf;
using linear_sm90::Ring;
using linear_tile::kHalfTile;
using linear_tile::kOutPitch;
using linear_tile::kRowBytes;
using linear_tile::LinearArgs;
using linear_tile::Work;

constexpr std::uint32_t kSteps = kFp8TileK / 32;  // wgmmas per stage

struct Fp8Args {
  LinearArgs linear;              // its tiles_per_split counts tiles of 128 inputs
  const float* row_scales;        // [num_rows]
  std::uint32_t tiles_per_scale;  // tiles of 128 inputs that share a scale
};

// Returns the output tile and the sub-range of K that this block computes.
template <std::uint32_t kTokens, std::uint32_t kBlocks>
__device__ __forceinline__ Work WorkOf(const LinearArgs& args) {
  const std::uint32_t tiles = (args.k + kFp8TileK - 1) / kFp8TileK;
  if constexpr (kBlocks != 1) {
    return linear_sm90::PairWork<kTokens>(args, tiles);
  } else {
    Work work;
    work.feature_tile = cuda::BlockX() / args.grid_splits;
    work.split = cuda::BlockX() % args.grid_splits;
    work.n0 = work.feature_tile * (args.has_gate ? kHalfTile : kLinearTileN);
    work.m0 = cuda::BlockY() * kTokens;
    const std::uint32_t each = args.grid_splits == 1 ? tiles : args.tiles_per_split;
    work.tile_begin = work.split * each;
    work.tile_end = work.tile_begin + each < tiles ? work.tile_begin + each : tiles;
    return work;
  }
}

// Reads the scales of a thread's two features stage by stage. Loads the next scale before it is
// needed.
class FeatureScaleReader {
 public:
  __device__ __forceinline__ FeatureScaleReader(const Fp8Args& args, const Work& work)
      : left_(args.tiles_per_scale - work.tile_begin % args.tiles_per_scale),
        tiles_per_scale_(args.tiles_per_scale) {
    const std::uint32_t tiles_n = (args.linear.n + kLinearTileN - 1) / kLinearTileN;
    const std::uint32_t feature = cuda::Warp() * 16 + cuda::Lane() / 4;
    padded_n_ = tiles_n * kLinearTileN;
    // The second block of a pair may have no features. It then reads valid addresses and does not
    // use the scales.
    const std::uint32_t first =
        work.feature_tile < tiles_n ? work.n0 + linear_tile::GapBefore(args.linear, feature) : 0;
    at_ = reinterpret_cast<const float*>(args.linear.scales) + first + feature +
          static_cast<std::int64_t>(work.tile_begin / args.tiles_per_scale) * padded_n_;
    next_[0] = at_[0];
    next_[1] = at_[8];
  }

  // Returns the scales of the next stage. `is_last` means that no stage follows it.
  __device__ __forceinline__ void Take(float (&scales)[2], bool is_last) {
    scales[0] = next_[0];
    scales[1] = next_[1];
    if (--left_ != 0 || is_last) return;
    left_ = tiles_per_scale_;
    at_ += padded_n_;
    next_[0] = at_[0];
    next_[1] = at_[8];
  }

 private:
  const float* at_;
  float next_[2];
  std::uint32_t left_;  // remaining stages of this scale
  std::uint32_t tiles_per_scale_;
  std::uint32_t padded_n_;
};

// Computes the sums of a block, with 64 features per warpgroup. As in linear_sm90.cu, total[4 j +
// i] of a thread is the sum of feature 16 warp + lane / 4 + 8 (i / 2) and token 8 j + 2 (lane % 4)
// + i % 2 of the tile.
template <std::uint32_t kTokens, bool kSubRanges, std::uint32_t kBlocks>
__device__ __forceinline__ void Consume(const Fp8Args& args, const Ring<kTokens, kBlocks>& ring,
                                        const Work& work, float (&total)[kTokens / 2]) {
  using R = Ring<kTokens, kBlocks>;
  constexpr std::uint32_t kWidth = kTokens < 128 ? kTokens : 128;  // tokens per wgmma
  constexpr std::uint32_t kSums = kWidth / 2;
  const std::uint32_t group = cuda::Warp() / 4;
  const std::uint64_t first_a = cuda::WgmmaDescriptor(ring.weights(0) + group * kBoxBytes, 0, 1024,
                                                      cuda::SharedSwizzle::k128B);
  const std::uint64_t first_b =
      cuda::WgmmaDescriptor(ring.tokens(0), 0, 1024, cuda::SharedSwizzle::k128B);
  FeatureScaleReader scales(args, work);
  [[maybe_unused]] float part[kSubRanges ? kTokens / 2 : 1];
  float sums[kSums];
#pragma unroll
  for (std::uint32_t i = 0; i < kTokens / 2; ++i) {
    total[i] = 0;
    if constexpr (kSubRanges) part[i] = 0;
  }
  cuda::PipelineCursor<R::kStages> cursor;
  [[maybe_unused]] std::uint32_t range_left = args.linear.tiles_per_split;
#pragma unroll 1
  for (std::uint32_t tile = work.tile_begin; tile < work.tile_end; ++tile) {
    float scale[2];
    scales.Take(scale, tile + 1 == work.tile_end);
    cuda::BarrierWait(ring.full(cursor.stage), cursor.parity);
    const std::uint64_t a = first_a + cursor.stage * (R::kStageBytes / 16);
#pragma unroll
    for (std::uint32_t first = 0; first < kTokens; first += kWidth) {
      const std::uint64_t b =
          first_b + cursor.stage * (R::kStageBytes / 16) + first * (kRowBytes / 16);
      cuda::WgmmaPin(sums);
      cuda::WgmmaFence();
#pragma unroll
      for (std::uint32_t step = 0; step < kSteps; ++step) {
        cuda::WgmmaE4M3<kWidth>(sums, a + step * 2, b + step * 2, step != 0);
      }
      cuda::WgmmaCommit();
      cuda::WgmmaWait<0>();
      cuda::WgmmaPin(sums);
      if (first + kWidth == kTokens) linear_sm90::Release(ring, cursor.stage);
#pragma unroll
      for (std::uint32_t i = 0; i < kSums; ++i) {
        float& to = kSubRanges ? part[i] : total[first / 2 + i];
        to = cuda::Fma(sums[i], scale[i / 2 % 2], to);
      }
    }
    cursor.Advance();
    if constexpr (kSubRanges) {
      if (--range_left == 0 || tile + 1 == work.tile_end) {
        const bool is_first = tile < args.linear.tiles_per_split;
        range_left = args.linear.tiles_per_split;
#pragma unroll
        for (std::uint32_t i = 0; i < kTokens / 2; ++i) {
          total[i] = is_first ? part[i] : cuda::Add(total[i], part[i]);
          part[i] = 0;
        }
      }
    }
  }
}

// Multiplies sums by the scales of their rows and stores them to y through shared memory. Only
// consumer threads call this function. All stages have been read, so the output tile can overwrite
// the ring.
template <std::uint32_t kTokens>
__device__ __forceinline__ void Store(const Fp8Args& args, std::byte* shared, const Work& work,
                                      const float (&total)[kTokens / 2]) {
  cuda::NamedSync(kConsumerBarrier, kConsumerThreads);
  auto* const out = reinterpret_cast<float*>(shared);
  const std::uint32_t feature = cuda::Warp() * 16 + cuda::Lane() / 4;
#pragma unroll
  for (std::uint32_t j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t token = j * 8 + cuda::Lane() % 4 * 2 + i;
      const bool exists = work.m0 + token < args.linear.num_rows;
      const float scale = exists ? args.row_scales[work.m0 + token] : 0.0f;
      out[token * kOutPitch + feature] = cuda::Mul(total[4 * j + i], scale);
      out[token * kOutPitch + feature + 8] = cuda::Mul(total[4 * j + i + 2], scale);
    }
  }
  cuda::NamedSync(kConsumerBarrier, kConsumerThreads);
  if (work.feature_tile * kLinearTileN < args.linear.n) {
    linear_tile::StoreRows<kTokens>(out, args.linear, work);
  }
}

// In a cluster a consumer thread has 192 sums, which need more than an equal share of the
// registers. The producer is therefore a whole warpgroup, which releases registers to the
// consumers.
template <std::uint32_t kBlocks>
inline constexpr std::uint32_t kThreadsOf = kBlocks == 1 ? kBlockThreads : kConsumerThreads + 128;

template <std::uint32_t kTokens, bool kSubRanges, std::uint32_t kBlocks>
__global__ void __launch_bounds__(kThreadsOf<kBlocks>, kBlocks == 1 ? 2 : 1)
    LinearFp8KernelSm90(const __grid_constant__ Fp8Args args,
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
  if constexpr (kBlocks == 1) {
    cuda::SyncBlock();
  } else {
    cuda::ClusterSync();
  }
  const Work work = WorkOf<kTokens, kBlocks>(args.linear);
  const bool produces = cuda::Warp() >= kConsumerWarps;
  if constexpr (kBlocks == 1) {
    static_assert(kTokens * kOutPitch * sizeof(float) < R::kBarriersAt);
    float total[kTokens / 2] = {};
    if (!produces) {
      Consume<kTokens, kSubRanges>(args, ring, work, total);
    } else {
      if (cuda::Lane() == 0) {
        linear_sm90::Produce<kFp8TileK>(args.linear, &weights, &tokens, ring, work);
      }
      // The barriers of AddPartials require that the lanes of a warp have converged.
      cuda::SyncWarp();
    }
    // Earlier kernels may write partial sums, row scales and residuals, and may read y.
    cuda::DependencyWait();
    // The flag is after the output tile, because consumers may write the output tile before the
    // producer warp has read the flag.
    auto* const flag = reinterpret_cast<std::uint32_t*>(ring.full(0)) - 1;
    const auto sum_of = [&total](std::uint32_t i) -> float& { return total[i]; };
    if (args.linear.grid_splits > 1 &&
        !linear_tile::AddPartials<kTokens / 2>(sum_of, !produces, args.linear, work, flag)) {
      return;
    }
    if (!produces) Store<kTokens>(args, ring.shared, work, total);
  } else if (produces) {
    cuda::LowerRegisters<24>();
    if (cuda::ThreadIndex() == kConsumerThreads) {
      linear_sm90::Produce<kFp8TileK>(args.linear, &weights, &tokens, ring, work);
    }
  } else {
    cuda::RaiseRegisters<240>();
    float total[kTokens / 2];
    Consume<kTokens, kSubRanges>(args, ring, work, total);
    cuda::DependencyWait();
    Store<kTokens>(args, ring.shared, work, total);
  }
}

// The kernel arguments of a launch, the tensor map of the weights, and the quantized rows. The
// launch creates a tensor map of these rows.
struct Fp8Product {
  Fp8Args args;
  const cuda::TmaTile& weights;
  linear_sm90::MappedRows codes;
};

template <std::uint32_t kTokens, bool kSubRanges, std::uint32_t kBlocks>
absl::Status LaunchTile(const CudaContext& context, const Fp8Product& product) {
  using R = Ring<kTokens, kBlocks>;
  QUIRE_ASSIGN_OR_RETURN(const cuda::TmaTile tokens, MapOf(product.codes, R::kOwnTokens));
  const LinearArgs& args = product.args.linear;
  const std::uint32_t token_tiles = (args.num_rows + kTokens - 1) / kTokens;
  cuda::LaunchShape shape{.threads = kThreadsOf<kBlocks>,
                          .shared_bytes = R::kBytes + cuda::kSharedAlignment,
                          .programmatic = true};
  if (kBlocks == 1) {
    shape.blocks_x = cuda::LinearTilesN(args.n) * args.grid_splits;
    shape.blocks_y = token_tiles;
  } else {
    shape.blocks_x = kPair * linear_sm90::FeaturePairs(args.n) * token_tiles;
    shape.cluster_x = kPair;
  }
  return cuda::Launch(context, "linear fp8 sm_90a",
                      LinearFp8KernelSm90<kTokens, kSubRanges, kBlocks>, shape, product.args,
                      product.weights.map(), tokens.map());
}

// True if each sub-range has a separate block. This is so for few rows, or if blocks that compute
// all of K would leave multiprocessors idle.
bool SplitsGrid(const CudaContext& context, std::uint32_t n, std::uint32_t splits,
                std::uint32_t rows) {
  if (rows <= cuda::kLinearSmallRows) return true;
  const std::uint32_t tiles = cuda::LinearTilesN(n);
  const std::uint32_t max_rows =
      cuda::kLinearSmallRows * (cuda::kLinearMaxPartials / (tiles * splits));
  return splits > 1 && tiles * ((rows + 127) / 128) < context.num_sms && rows <= max_rows;
}

absl::Status LaunchRows(const CudaContext& context, Fp8Product product, bool splits_grid) {
  LinearArgs& args = product.args.linear;
  const cuda::LinearReduction tree = cuda::Fp8ReductionOf(args.n, args.k);
  args.tiles_per_split = tree.tiles_per_split;
  args.grid_splits = splits_grid ? tree.splits : 1;
  if (splits_grid) return LaunchTile<64, false, 1>(context, product);
  if (tree.splits > 1 || args.num_rows <= 128) {
    return LaunchTile<128, true, kPair>(context, product);
  }
  return LaunchTile<256, false, kPair>(context, product);
}

}  // namespace

namespace internal {

absl::Status LinearFp8Sm90Cuda(const CudaContext& context, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  QUIRE_ASSIGN_OR_RETURN(const LinearArgs all, linear_tile::ArgsOf(context, params));
  const std::uint32_t group = all.group == 0 ? weight.k() : all.group;
  const bool splits_grid =
      SplitsGrid(context, all.n, cuda::Fp8ReductionOf(all.n, all.k).splits, all.num_rows);
  const cuda::Fp8RowsWorkspace room = cuda::Fp8RowsWorkspaceOf(all.k, splits_grid);
  std::byte* const scratch = context.linear_workspace + room.at;
  const std::uint32_t step = cuda::RowsPerLaunch(all.num_rows, room.rows);
  LinearParams rows = params;
  for (std::uint32_t first = 0; first < params.num_rows; first += step) {
    rows.num_rows = std::min(params.num_rows - first, step);
    rows.x = params.x + first * params.x_stride;
    rows.y = params.y + first * params.y_stride;
    if (params.residual != nullptr) {
      rows.residual = params.residual + first * params.residual_stride;
    }
    auto* const scales = reinterpret_cast<float*>(scratch);
    auto* const codes = reinterpret_cast<std::uint8_t*>(scratch + room.codes_at);
    QUIRE_RETURN_IF_ERROR(QuantizeFp8RowsCuda(
        context,
        {.x = rows.x, .x_stride = rows.x_stride, .k = weight.k(), .num_rows = rows.num_rows},
        {codes, room.stride, scales}));
    QUIRE_ASSIGN_OR_RETURN(const LinearArgs args, linear_tile::ArgsOf(context, rows));
    QUIRE_RETURN_IF_ERROR(
        LaunchRows(context,
                   {.args = {.linear = args,
                             .row_scales = scales,
                             .tiles_per_scale = (group + kFp8TileK - 1) / kFp8TileK},
                    .weights = *weight.map(),
                    .codes = {codes, DType::kF8E4M3, rows.num_rows, weight.k(), room.stride}},
                   splits_grid));
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace quire::kernels
