// Scores of index keys without tensor cores: a block computes one row of the step, over every
// GridY-th tile of 64 keys. The products are f32, because rounding queries to bf16 would change
// selections.
//
// Each warp multiplies 8 heads with all keys of the tile, two keys per lane. Queries and transposed
// keys are in shared memory. One thread per key then sums over the heads. Both sums have the same
// order as on the CPU, so their bits are equal.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/vec.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/sparse/index_score.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kWarpHeads = 8;
constexpr std::uint32_t kTile = 64;  // keys
constexpr std::uint32_t kColumns = 4;
constexpr std::uint32_t kBlocksPerSm = 4;
static_assert(kWarps * kWarpHeads == kMaxGpuIndexHeads);
static_assert(kTile == 2 * cuda::kWarpSize);

template <typename T>
struct IndexScoreArgs {
  KvView<T> keys;
  const float* q;
  const float* weights;
  float* scores;
  const std::int32_t* token_rows;
  const std::int32_t* positions;
  std::int64_t score_stride;
  std::uint32_t num_heads;
  float scale;
};

constexpr std::uint32_t PaddedHeads(std::uint32_t num_heads) {
  return (num_heads + kWarpHeads - 1) / kWarpHeads * kWarpHeads;
}

// Arrays in shared memory.
struct IndexShared {
  __device__ __forceinline__ IndexShared(std::uint32_t num_heads, std::uint32_t size)
      : queries(reinterpret_cast<float*>(cuda::SharedMemory16())),
        keys(queries + PaddedHeads(num_heads) * size),
        products(keys + size * kTile) {}
  static constexpr std::uint32_t Bytes(std::uint32_t num_heads, std::uint32_t size) {
    return (PaddedHeads(num_heads) * (size + kTile) + size * kTile) * sizeof(float);
  }

  float* queries;   // [head / 8][column][head % 8], scaled
  float* keys;      // [column][key]
  float* products;  // [head][key], negative products as 0
};

template <typename T>
__device__ __forceinline__ void LoadQueries(const IndexScoreArgs<T>& args, std::int64_t row,
                                            const IndexShared& shared) {
  const std::uint32_t size = args.keys.head_size();
  const float* const from = args.q + row * args.num_heads * size;
  for (std::uint32_t i = cuda::ThreadIndex(); i < PaddedHeads(args.num_heads) * size;
       i += kThreads) {
    const std::uint32_t head = i / size;
    const std::uint32_t at = (head / kWarpHeads * size + i % size) * kWarpHeads + head % kWarpHeads;
    shared.queries[at] = head < args.num_heads ? cuda::Mul(args.scale, from[i]) : 0.0f;
  }
}

// Loads a tile of keys. Keys from `end` on are zeros.
template <typename T>
__device__ __forceinline__ void LoadKeys(const IndexScoreArgs<T>& args, std::uint32_t sequence,
                                         std::uint32_t first, std::uint32_t end,
                                         const IndexShared& shared) {
  const std::uint32_t key = cuda::ThreadIndex() % kTile;
  const std::uint32_t step = kThreads / kTile * kColumns;
  for (std::uint32_t c = cuda::ThreadIndex() / kTile * kColumns; c < args.keys.head_size();
       c += step) {
    Vec<float, kColumns> x{};
    if (first + key < end) {
      x = args.keys.template load<kColumns, float>(sequence, 0, first + key, c);
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kColumns; ++j) shared.keys[(c + j) * kTile + key] = x.lane[j];
  }
}

// Multiplies the heads of this warp with two keys per lane.
__device__ __forceinline__ void Multiply(std::uint32_t size, const IndexShared& shared) {
  const std::uint32_t lane = cuda::Lane();
  const std::uint32_t head = cuda::Warp() * kWarpHeads;
  const float* const queries = shared.queries + head * size;
  float dot[kWarpHeads][2] = {};
  for (std::uint32_t c = 0; c < size; ++c) {
    const float key[2] = {shared.keys[c * kTile + lane],
                          shared.keys[c * kTile + lane + cuda::kWarpSize]};
    const auto* const q = reinterpret_cast<const float4*>(queries + c * kWarpHeads);
    const float4 low = q[0];
    const float4 high = q[1];
    const float x[kWarpHeads] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (std::uint32_t h = 0; h < kWarpHeads; ++h) {
      dot[h][0] = cuda::Fma(x[h], key[0], dot[h][0]);
      dot[h][1] = cuda::Fma(x[h], key[1], dot[h][1]);
    }
  }
#pragma unroll
  for (std::uint32_t h = 0; h < kWarpHeads; ++h) {
    float* const to = shared.products + (head + h) * kTile + lane;
    // The comparison keeps NaN.
    to[0] = dot[h][0] < 0 ? 0.0f : dot[h][0];
    to[cuda::kWarpSize] = dot[h][1] < 0 ? 0.0f : dot[h][1];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    IndexScoreKernel(const __grid_constant__ IndexScoreArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0) return;
  const auto end = static_cast<std::uint32_t>(args.positions[row]) + 1;
  if (cuda::BlockY() * kTile >= end) return;
  const std::uint32_t size = args.keys.head_size();
  const IndexShared shared(args.num_heads, size);
  const float* const weights = args.weights + row * args.num_heads;
  float* const scores = args.scores + row * args.score_stride;
  LoadQueries(args, row, shared);
  for (std::uint32_t first = cuda::BlockY() * kTile; first < end; first += cuda::GridY() * kTile) {
    LoadKeys(args, static_cast<std::uint32_t>(batch_row), first, end, shared);
    cuda::SyncBlock();
    if (cuda::Warp() * kWarpHeads < args.num_heads) Multiply(size, shared);
    cuda::SyncBlock();
    const std::uint32_t key = cuda::ThreadIndex();
    if (key < kTile && first + key < end) {
      float sum = 0;
      for (std::uint32_t h = 0; h < args.num_heads; ++h) {
        sum = cuda::Fma(weights[h], shared.products[h * kTile + key], sum);
      }
      scores[first + key] = sum;
    }
  }
}

absl::Status CheckShapes(const IndexScoreParams& params, const KvShape& shape) {
  if (shape.head_size % kColumns != 0 || shape.head_size > kMaxGpuIndexSize ||
      params.num_heads > kMaxGpuIndexHeads) {
    return absl::InvalidArgumentError(
        absl::StrCat("indexer has ", params.num_heads, " heads of ", shape.head_size,
                     " columns: a GPU requires at most ", kMaxGpuIndexHeads,
                     " heads of a multiple of ", kColumns, " columns, at most ", kMaxGpuIndexSize));
  }
  if (params.token_rows == nullptr || params.positions == nullptr) {
    return absl::InvalidArgumentError("IndexScore on a GPU requires token_rows and positions");
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status IndexScoreCuda(const CudaContext& context, const IndexScoreParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  QUIRE_RETURN_IF_ERROR(CheckShapes(params, shape));
  const std::uint32_t num_rows = params.row_end - params.row_begin;
  if (num_rows == 0) return absl::OkStatus();
  const auto tiles = static_cast<std::uint32_t>(params.score_stride / kTile);
  const std::int64_t first = params.row_begin;
  return std::visit(
      [&]<typename View>(const View& keys) -> absl::Status {
        using T = typename View::Element;
        if constexpr (std::is_same_v<T, float> || std::is_same_v<T, BF16>) {
          return cuda::Launch(
              context, "index_score", IndexScoreKernel<T>,
              {.blocks_x = num_rows,
               .blocks_y =
                   std::clamp(kBlocksPerSm * context.num_sms / num_rows, 1u, std::max(tiles, 1u)),
               .threads = kThreads,
               .shared_bytes = IndexShared::Bytes(params.num_heads, shape.head_size),
               .programmatic = true},
              IndexScoreArgs<T>{keys, params.q + first * params.num_heads * shape.head_size,
                                params.weights + first * params.num_heads, params.scores,
                                params.token_rows + first, params.positions + first,
                                params.score_stride, params.num_heads, params.scale});
        } else {
          return absl::InvalidArgumentError(absl::StrCat("index rows are ", DTypeName(shape.dtype),
                                                         ", they must be f32 or bf16"));
        }
      },
      *params.keys);
}

}  // namespace internal
}  // namespace quire::kernels
