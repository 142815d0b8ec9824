// Products of all heads in one launch, for few rows. A warp computes 16 features of one head for up
// to 64 tokens. Weights are operand A of the MMA and tokens are operand B. The order of sums is
// that of linear_reduction.h, so the bits equal those of linear_cuda.cu. Fragments are loaded
// directly from global memory. Each weight is read once, by one warp, in whole sectors. Saving
// launches matters more here than a pipeline. The memory traffic of the weights bounds the kernel.
//
// Products with more rows use the tiles of linear_tile.cuh, also with one launch for all heads.

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear/head_linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kTokenTiles = kHeadLinearRows / 8;

struct HeadLinearArgs {
  const BF16* weights[kMaxHeadsPerLaunch];  // [n, k] each
  const BF16* x;
  BF16* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int64_t x_head_stride;
  std::int64_t y_head_stride;
  std::uint32_t num_rows;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t split;  // inputs per sub-range of K
};

// Loads columns c and c + 1 to `low` and columns c + 8 and c + 9 to `high`, with c = 2 (lane % 4).
__device__ __forceinline__ void LoadPairs(const BF16* from, std::uint32_t* low,
                                          std::uint32_t* high) {
  const auto* const pairs = reinterpret_cast<const std::uint32_t*>(from) + cuda::Lane() % 4;
  *low = pairs[0];
  *high = pairs[4];
}

__global__ void __launch_bounds__(kThreads)
    HeadLinearKernel(const __grid_constant__ HeadLinearArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t feature = (cuda::BlockX() * kWarps + cuda::Warp()) * 16;
  const std::uint32_t head = cuda::BlockY();
  if (feature >= args.n) return;
  const std::uint32_t group = cuda::Lane() / 4;
  const BF16* const w = args.weights[head] + std::int64_t{feature + group} * args.k;
  const BF16* const x = args.x + head * args.x_head_stride + group * args.x_stride;
  float total[kTokenTiles][4] = {};
  for (std::uint32_t begin = 0; begin < args.k; begin += args.split) {
    const std::uint32_t end = begin + args.split < args.k ? begin + args.split : args.k;
    float sums[kTokenTiles][4] = {};
    for (std::uint32_t at = begin; at < end; at += 16) {
      std::uint32_t a[4];
      LoadPairs(w + at, &a[0], &a[2]);
      LoadPairs(w + std::int64_t{8} * args.k + at, &a[1], &a[3]);
#pragma unroll
      for (std::uint32_t t = 0; t < kTokenTiles; ++t) {
        if (t * 8 >= args.num_rows) break;
        std::uint32_t b[2] = {0, 0};
        if (t * 8 + group < args.num_rows) {
          LoadPairs(x + std::int64_t{t} * 8 * args.x_stride + at, &b[0], &b[1]);
        }
        cuda::MmaBF16(sums[t], a, b);
      }
    }
#pragma unroll
    for (std::uint32_t t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        total[t][i] = begin == 0 ? sums[t][i] : cuda::Add(total[t][i], sums[t][i]);
      }
    }
  }
  BF16* const y = args.y + head * args.y_head_stride + feature + group;
#pragma unroll
  for (std::uint32_t t = 0; t < kTokenTiles; ++t) {
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t token = t * 8 + cuda::Lane() % 4 * 2 + i % 2;
      if (token >= args.num_rows) continue;
      y[token * args.y_stride + i / 2 * 8] = BF16::FromFloat(total[t][i]);
    }
  }
}

constexpr std::uint32_t kTileRows = 128;

struct HeadTileArgs {
  linear_tile::LinearArgs linear;  // arguments for all heads, with x and y of head 0
  const BF16* weights[kMaxHeadsPerLaunch];
  std::int64_t x_head_stride;
  std::int64_t y_head_stride;
  std::uint32_t row_tiles;
};

// A block computes 128 rows of one head. Adjacent blocks have the same rows and matrix. A block
// computes all sub-ranges of K, because there are enough heads to fill all multiprocessors.
__global__ void __launch_bounds__(linear_tile::kThreads, 1)
    HeadTileKernel(const __grid_constant__ HeadTileArgs args) {
  cuda::DependencyLaunch();
  const std::uint32_t feature_tiles = cuda::LinearTilesN(args.linear.n);
  const std::uint32_t feature_tile = cuda::BlockX() % feature_tiles;
  const std::uint32_t row_tile = cuda::BlockX() / feature_tiles % args.row_tiles;
  const std::uint32_t head = cuda::BlockX() / feature_tiles / args.row_tiles;
  linear_tile::LinearArgs own = args.linear;
  own.w = reinterpret_cast<const std::byte*>(args.weights[head]);
  own.x += head * args.x_head_stride;
  own.y = static_cast<BF16*>(own.y) + head * args.y_head_stride;
  const linear_tile::Work work{.feature_tile = feature_tile,
                               .split = 0,
                               .n0 = feature_tile * cuda::kLinearTileN,
                               .m0 = row_tile * kTileRows,
                               .tile_begin = 0,
                               .tile_end = cuda::LinearTilesK(own.k)};
  linear_tile::Multiply<WeightFormat::kPlain, kTileRows, true>(own, work, linear_tile::SameRow());
}

absl::Status LaunchTiles(const CudaContext& context, const HeadLinearParams& params) {
  HeadTileArgs args{};
  QUIRE_ASSIGN_OR_RETURN(args.linear, linear_tile::ArgsOf(*params.weights[0], params.x,
                                                          params.x_stride, params.num_rows));
  args.linear.y = params.y.data();
  args.linear.y_stride = params.y_stride;
  args.linear.y_is_bf16 = true;
  for (std::size_t h = 0; h < params.weights.size(); ++h) {
    args.weights[h] = static_cast<const BF16*>(params.weights[h]->data());
  }
  args.x_head_stride = params.x_head_stride;
  args.y_head_stride = params.y_head_stride;
  args.row_tiles = (params.num_rows + kTileRows - 1) / kTileRows;
  return cuda::Launch(
      context, "head_linear", HeadTileKernel,
      // One dimension, because a grid has at most 65535 blocks along y.
      {.blocks_x = cuda::LinearTilesN(args.linear.n) * args.row_tiles *
                   static_cast<std::uint32_t>(params.weights.size()),
       .threads = linear_tile::kThreads,
       .shared_bytes = linear_tile::Shape<WeightFormat::kPlain, kTileRows>::kSharedBytes,
       .programmatic = true},
      args);
}

}  // namespace

namespace internal {

absl::Status HeadLinearCuda(const CudaContext& context, const HeadLinearParams& params) {
  if (params.num_rows > kHeadLinearRows) return LaunchTiles(context, params);
  const std::uint32_t n = params.weights[0]->n();
  const std::uint32_t k = params.weights[0]->k();
  HeadLinearArgs args{.weights = {},
                      .x = params.x.as<BF16>(),
                      .y = params.y.as<BF16>(),
                      .x_stride = params.x_stride,
                      .y_stride = params.y_stride,
                      .x_head_stride = params.x_head_stride,
                      .y_head_stride = params.y_head_stride,
                      .num_rows = params.num_rows,
                      .n = n,
                      .k = k,
                      .split = cuda::LinearReductionOf(n, k).tiles_per_split * cuda::kLinearTileK};
  for (std::size_t h = 0; h < params.weights.size(); ++h) {
    args.weights[h] = static_cast<const BF16*>(params.weights[h]->data());
  }
  return cuda::Launch(context, "head_linear", HeadLinearKernel,
                      {.blocks_x = (n + 16 * kWarps - 1) / (16 * kWarps),
                       .blocks_y = static_cast<std::uint32_t>(params.weights.size()),
                       .threads = kThreads,
                       .programmatic = true},
                      args);
}

}  // namespace internal
}  // namespace quire::kernels
