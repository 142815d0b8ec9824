// A block computes some columns of one head of a row and processes the row's tokens in order. P
// lanes share a column: 4 for states of up to 128 rows, otherwise 8. Lane p owns rows 4 (P j + p)
// to 4 (P j + p) + 3 of the state for j = 0, 1, ..., 7, and keeps them in registers for all tokens.
// Each of these 4 rows has an accumulator, so row i is added to accumulator i mod 4 P. A lane adds
// its accumulators, and a butterfly adds the sums of the lanes of a column.
//
// The block copies q, k, decays, v and the rate of 4 tokens to shared memory while it computes the
// previous 4 tokens. Rows of the state beyond key_size are zero, and so are the elements of q and k
// for these rows.
//
// Decode is bound by memory: 8 bytes per element of the state. Prompts are bound by the latency of
// a token, about 16 dependent FMAs, 4 or 6 shuffles and the loads of shared memory.

#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/recurrent/recurrent_math.cuh"
#include "kernels/recurrent/state_scan.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kTile = 4;       // tokens that are copied together
constexpr std::uint32_t kLaneRows = 32;  // rows of the state that a lane owns

// The division of states of up to kRows rows among lanes and blocks.
template <std::uint32_t kRows>
struct Shape {
  static constexpr std::uint32_t kParts = kRows / kLaneRows;  // number of lanes that share a column
  static constexpr std::uint32_t kStride = 4 * kParts;        // number of accumulators of a column
  static constexpr std::uint32_t kWarpColumns = cuda::kWarpSize / kParts;
  static constexpr std::uint32_t kColumns = kThreads / kParts;  // number of columns of a block
  // Returns the lane's first row.
  static __device__ __forceinline__ std::uint32_t FirstRow() {
    return 4 * (cuda::Lane() / kWarpColumns);
  }
};

// The inputs of a tile in shared memory, for states of up to kRows rows.
template <std::uint32_t kRows>
struct Tile {
  float q[kTile][kRows];
  float k[kTile][kRows];
  float decay[kTile][kRows];  // if not decays_channels, only the first element of a token is used
  float v[kTile][Shape<kRows>::kColumns];
  float rate[kTile];
};

// The head and the columns that a block computes.
struct Block {
  std::uint32_t first;  // index of the tile's first token
  std::uint32_t head;
  std::uint32_t key_head;
  std::uint32_t column;  // first column
};

// Starts to copy the inputs of `count` tokens, at most kTile. Inputs beyond the state are zero.
template <std::uint32_t kRows>
__device__ __forceinline__ void CopyTile(const StateScanParams& params, const Block& block,
                                         std::uint32_t count, Tile<kRows>* tile) {
  const std::uint32_t thread = cuda::ThreadIndex();
  const std::uint32_t dk = params.key_size;
  for (std::uint32_t n = thread; n < count * kRows; n += kThreads) {
    const std::uint32_t t = n / kRows, i = n % kRows;
    const bool valid = i < dk;
    const std::int64_t token = block.first + t;
    const std::int64_t at = token * params.qkv_stride + block.key_head * dk + (valid ? i : 0);
    cuda::CpAsync4(&tile->q[t][i], params.q + at, valid);
    cuda::CpAsync4(&tile->k[t][i], params.k + at, valid);
    if (!params.decays_channels) continue;
    const std::int64_t decay = (token * params.heads + block.head) * dk + (valid ? i : 0);
    cuda::CpAsync4(&tile->decay[t][i], params.decay + decay, valid);
  }
  constexpr std::uint32_t kColumns = Shape<kRows>::kColumns;
  if (thread < count * kColumns) {
    const std::uint32_t t = thread / kColumns, c = thread % kColumns;
    const bool valid = block.column + c < params.value_size;
    const std::int64_t at = (std::int64_t{block.first} + t) * params.qkv_stride +
                            std::int64_t{block.head} * params.value_size +
                            (valid ? block.column + c : 0);
    cuda::CpAsync4(&tile->v[t][c], params.v + at, valid);
  }
  if (thread < count) {
    const std::int64_t at = (std::int64_t{block.first} + thread) * params.heads + block.head;
    cuda::CpAsync4(&tile->rate[thread], params.rate + at);
    if (!params.decays_channels) cuda::CpAsync4(&tile->decay[thread][0], params.decay + at);
  }
}

// Returns the sum of the accumulators of a column, with the same bits in all of its lanes.
template <std::uint32_t kRows>
__device__ __forceinline__ float ColumnSum(const float* parts) {
  float sum = cuda::Add(cuda::Add(parts[0], parts[1]), cuda::Add(parts[2], parts[3]));
#pragma unroll
  for (std::uint32_t mask = Shape<kRows>::kWarpColumns; mask < cuda::kWarpSize; mask *= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  return sum;
}

__device__ __forceinline__ float4 Load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

// Updates the rows that this lane owns with token t of the tile, and returns S^T q of the lane's
// column.
template <std::uint32_t kRows>
__device__ __forceinline__ float Step(const Tile<kRows>& tile, std::uint32_t t, bool delta,
                                      bool decays_channels, float v, float* s) {
  constexpr std::uint32_t kStride = Shape<kRows>::kStride;
  const std::uint32_t row = Shape<kRows>::FirstRow();
  const float common = tile.decay[t][0];
  float predicted[4] = {};
#pragma unroll
  for (std::uint32_t j = 0; j < kLaneRows / 4; ++j) {
    float4 decay{common, common, common, common};
    if (decays_channels) decay = Load4(&tile.decay[t][kStride * j + row]);
    s[4 * j] = cuda::Mul(decay.x, s[4 * j]);
    s[4 * j + 1] = cuda::Mul(decay.y, s[4 * j + 1]);
    s[4 * j + 2] = cuda::Mul(decay.z, s[4 * j + 2]);
    s[4 * j + 3] = cuda::Mul(decay.w, s[4 * j + 3]);
    if (!delta) continue;
    const float4 k = Load4(&tile.k[t][kStride * j + row]);
    predicted[0] = cuda::Fma(s[4 * j], k.x, predicted[0]);
    predicted[1] = cuda::Fma(s[4 * j + 1], k.y, predicted[1]);
    predicted[2] = cuda::Fma(s[4 * j + 2], k.z, predicted[2]);
    predicted[3] = cuda::Fma(s[4 * j + 3], k.w, predicted[3]);
  }
  const float u = cuda::Mul(tile.rate[t], delta ? cuda::Sub(v, ColumnSum<kRows>(predicted)) : v);
  float sum[4] = {};
#pragma unroll
  for (std::uint32_t j = 0; j < kLaneRows / 4; ++j) {
    const float4 k = Load4(&tile.k[t][kStride * j + row]);
    const float4 q = Load4(&tile.q[t][kStride * j + row]);
    s[4 * j] = cuda::Fma(k.x, u, s[4 * j]);
    s[4 * j + 1] = cuda::Fma(k.y, u, s[4 * j + 1]);
    s[4 * j + 2] = cuda::Fma(k.z, u, s[4 * j + 2]);
    s[4 * j + 3] = cuda::Fma(k.w, u, s[4 * j + 3]);
    sum[0] = cuda::Fma(s[4 * j], q.x, sum[0]);
    sum[1] = cuda::Fma(s[4 * j + 1], q.y, sum[1]);
    sum[2] = cuda::Fma(s[4 * j + 2], q.z, sum[2]);
    sum[3] = cuda::Fma(s[4 * j + 3], q.w, sum[3]);
  }
  return ColumnSum<kRows>(sum);
}

// The rows of a column that this lane owns, in a head's state in memory.
struct Part {
  std::int64_t at;  // offset of the lane's first row
  std::int64_t row_stride;
  std::uint32_t rows;  // rows from the lane's first row to the end of the state; 0: no column

  // Calls each(i, address) for the lane's rows, where i is the row's index in registers. T is float
  // or const float.
  template <std::uint32_t kRows, typename T, typename Each>
  __device__ __forceinline__ void ForRows(T* state, Each&& each) const {
    constexpr std::uint32_t kStride = Shape<kRows>::kStride;
    T* p = state + at;
#pragma unroll
    for (std::uint32_t i = 0; i < kLaneRows; ++i) {
      if (kStride * (i / 4) + i % 4 < rows) each(i, p);
      p += i % 4 == 3 ? (kStride - 3) * row_stride : row_stride;
    }
  }
};

template <std::uint32_t kRows>
__global__ void __launch_bounds__(kThreads, 4) StateScanKernel(const StateScanParams params) {
  constexpr std::uint32_t kColumns = Shape<kRows>::kColumns;
  constexpr std::uint32_t kWarpColumns = Shape<kRows>::kWarpColumns;
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const cuda::RowOfBlock row(params.rows);
  if (row.tokens == 0) return;
  auto* const tiles = reinterpret_cast<Tile<kRows>*>(cuda::SharedMemory16());
  const std::uint32_t blocks = (params.value_size + kColumns - 1) / kColumns;
  Block block{.first = row.first,
              .head = cuda::BlockY() / blocks,
              .key_head = 0,
              .column = cuda::BlockY() % blocks * kColumns};
  block.key_head = params.key_head(block.head);
  const auto count = [&](std::uint32_t begin) {
    return row.tokens - begin < kTile ? row.tokens - begin : kTile;
  };
  CopyTile(params, block, count(0), &tiles[0]);
  cuda::CpAsyncCommit();

  const std::uint32_t local = cuda::Warp() * kWarpColumns + cuda::Lane() % kWarpColumns;
  const std::uint32_t column = block.column + local;
  const bool exists = column < params.value_size;
  const std::uint32_t first_row = Shape<kRows>::FirstRow();
  const std::int64_t row_stride = params.value_size;
  const Part part{
      .at = (std::int64_t{block.head} * params.key_size + first_row) * row_stride + column,
      .row_stride = row_stride,
      .rows = exists && first_row < params.key_size ? params.key_size - first_row : 0};
  float s[kLaneRows] = {};
  if (row.before != nullptr) {
    part.ForRows<kRows>(row.before, [&](std::uint32_t i, const float* p) { s[i] = *p; });
  }
  const auto store = [&](float* state) {
    part.ForRows<kRows>(state, [&](std::uint32_t i, float* p) { *p = s[i]; });
  };
  const bool writes = exists && cuda::Lane() < kWarpColumns;
  const float skip = params.skip == nullptr ? 0.0f : params.skip[block.head];
  float* out = params.out +
               (std::int64_t{row.first} * params.heads + block.head) * params.value_size + column;
  for (std::uint32_t begin = 0; begin < row.tokens; begin += kTile) {
    const std::uint32_t current = begin / kTile % 2;
    if (begin + kTile < row.tokens) {
      block.first += kTile;
      CopyTile(params, block, count(begin + kTile), &tiles[1 - current]);
    }
    cuda::CpAsyncCommit();
    cuda::CpAsyncWait<1>();
    cuda::SyncBlock();
    const std::uint32_t tokens = count(begin);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const float v = tiles[current].v[t][local];
      float y = Step(tiles[current], t, params.delta, params.decays_channels, v, s);
      if (params.skip != nullptr) y = cuda::Fma(skip, v, y);
      if (writes) *out = y;
      out += std::int64_t{params.heads} * params.value_size;
      if (begin + t + 1 == row.snapshot) store(row.snapshot_to);
    }
    cuda::SyncBlock();  // The next copy overwrites this tile.
  }
  if (row.after != nullptr) store(row.after);
}

template <std::uint32_t kRows>
absl::Status LaunchScan(const CudaContext& context, const StateScanParams& params) {
  constexpr std::uint32_t kColumns = Shape<kRows>::kColumns;
  const std::uint32_t blocks = (params.value_size + kColumns - 1) / kColumns;
  return cuda::Launch(context, "state_scan", StateScanKernel<kRows>,
                      {.blocks_x = params.rows.max_live_rows(),
                       .blocks_y = params.heads * blocks,
                       .threads = kThreads,
                       .shared_bytes = 2 * sizeof(Tile<kRows>),
                       .programmatic = true},
                      params);
}

}  // namespace

namespace internal {

absl::Status StateScanCuda(const CudaContext& context, const StateScanParams& params) {
  return params.key_size <= 128 ? LaunchScan<128>(context, params)
                                : LaunchScan<kMaxStateRows>(context, params);
}

}  // namespace internal
}  // namespace quire::kernels
