// MLA with tensor cores. There is one KV head. Its rows of up to 576 bf16 columns are K, and the
// first columns, up to 512, are V. Prefill and decode tokens have the same reduction order.
//
// A block processes 32 packed rows (attention_work.h) and iterates over their keys in tiles of 32
// tokens. Each tile is loaded once for K and V. Each of the eight warps has one half of the rows
// and one of four groups of columns. Scores: a warp multiplies its 16 rows with a quarter of the
// columns, for all tokens. The four partial products are added in order through shared memory, then
// 8 threads per row compute the softmax. Values: a warp multiplies its 16 rows of P with 128
// columns of V. Each element of a tile is thus read from shared memory by two warps instead of
// eight, and queries and output stay in registers. cp.async loads a tile while the previous one is
// multiplied.
//
// Each span of 1024 tokens has a separate state. Normally the block reduces its spans left to right
// in global memory. If the step is split (IsSplit), every span is a separate item and a second
// kernel reduces the spans. The order is the same in both cases, so the split does not change any
// bit. Tiles that a row does not see do not change the row's bits.

#include <algorithm>

#include "kernels/attention/attention_latent.cuh"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kRows = kLatentBlockRows;
constexpr std::uint32_t kTile = 32;      // tokens
constexpr std::uint32_t kColumns = 576;  // columns of K
constexpr std::uint32_t kValues = 512;   // columns of V
constexpr std::uint32_t kGroups = 4;     // column groups, each with one warp per half of the rows
constexpr std::uint32_t kSteps = kColumns / 16 / kGroups;  // MMA steps of a warp over columns of K
constexpr std::uint32_t kValueTiles =
    kValues / 8 / kGroups;  // MMA tiles of a warp over columns of V
constexpr std::uint32_t kRowBytes = kColumns * 2;
constexpr std::uint32_t kTileBytes = kTile * kRowBytes;
// Pitch in floats. It avoids bank conflicts between the float2 accesses of a half warp.
constexpr std::uint32_t kScorePitch = 40;
constexpr std::uint32_t kWeightPitch = 40;  // in bf16; avoids bank conflicts of ldmatrix rows
static_assert(kThreads / cuda::kWarpSize == kRows / 16 * kGroups);
static_assert(kMaxLatentColumns == kColumns && kMaxLatentValues == kValues);

struct Shared {
  std::byte tiles[2][kTileBytes];
  float scores[kGroups][kRows][kScorePitch];
  BF16 weights[kRows][kWeightPitch];
  float factor[kRows];  // rescaling factor of the sums over the preceding tiles
  float max[kRows];     // maximum of the span
  float sum[kRows];
  float row_max[kRows];  // maximum and sum of the preceding spans
  float row_sum[kRows];
};
// Compute capability 8.6 and 8.9 allow 99 KB per block. No supported GPU has a lower limit.
static_assert(sizeof(Shared) <= 99 * 1024);

// A tile has one row per token. Returns the byte offset of a row's 16-byte piece. The pieces with
// the same index in eight consecutive rows are in different banks.
__device__ __forceinline__ std::uint32_t At(std::uint32_t row, std::uint32_t piece) {
  return row * kRowBytes + ((piece ^ (row & 7)) << 4);
}

// Starts copying a tile. Tokens that no row sees and columns beyond the head size are zero-filled.
__device__ __forceinline__ void CopyTile(const LatentRows& rows, std::uint32_t tile,
                                         std::uint32_t keys_end, std::byte* to) {
  const KvView<BF16>& view = rows.args.rows;
  const std::uint32_t row = cuda::ThreadIndex() / 8;
  const std::uint32_t token = tile * kTile + row;
  const bool exists = token < keys_end;
  const BF16* const from =
      view.blocks +
      (exists ? std::int64_t{view.row_idx(rows.sequence, token)} * view.row_elements() : 0);
#pragma unroll
  for (std::uint32_t j = 0; j < kColumns / 64; ++j) {
    const std::uint32_t piece = cuda::ThreadIndex() % 8 + 8 * j;
    const bool valid = exists && piece * 8 < view.head_size();
    cuda::CpAsync16(to + At(row, piece), from + (valid ? piece * 8 : 0), valid);
  }
}

// State of one thread for its warp's 16 rows.
struct Fragments {
  std::uint32_t q[kSteps][4];
  float o[kValueTiles][4];
};

// Returns the half of the block's rows that the warp processes.
__device__ __forceinline__ std::uint32_t Half() {
  return cuda::Warp() % 2;
}
// Returns the column group of the warp.
__device__ __forceinline__ std::uint32_t Group() {
  return cuda::Warp() / 2;
}
// Returns the row of accumulator registers 2 * half and 2 * half + 1. `half` is 0 or 1 for the
// first or last 8 of the warp's 16 rows, unlike Half().
__device__ __forceinline__ std::uint32_t FragmentRow(std::uint32_t half) {
  return Half() * 16 + cuda::Lane() / 4 + 8 * half;
}

__device__ __forceinline__ void LoadQueries(const LatentRows& rows, Fragments& f) {
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t row = FragmentRow(half);
    const bool valid = row < rows.count;
    const BF16* const from =
        rows.args.q + (valid ? rows.Offset(row, rows.args.q_stride) : std::int64_t{0});
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      const std::uint32_t column = (Group() * kSteps + i) * 16;
      f.q[i][half] = 0;
      f.q[i][half + 2] = 0;
      if (!valid || column >= rows.args.rows.head_size()) continue;
      const auto* const pairs = reinterpret_cast<const std::uint32_t*>(from + column);
      f.q[i][half] = pairs[cuda::Lane() % 4];
      f.q[i][half + 2] = pairs[cuda::Lane() % 4 + 4];
    }
  }
}

// Computes the products of queries and keys over this warp's columns.
__device__ __forceinline__ void Scores(const Fragments& f, const std::byte* tile, Shared& shared) {
  const std::uint32_t lane = cuda::Lane();
  const std::uint32_t row = lane / 16 * 8 + lane % 8;
  float s[kTile / 8][4] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
    for (std::uint32_t n = 0; n < kTile / 8; n += 2) {
      std::uint32_t r[4];
      cuda::LdMatrixX4(r, tile + At(8 * n + row, 2 * (Group() * kSteps + i) + lane / 8 % 2));
      cuda::MmaBF16(s[n], f.q[i], {r[0], r[1]});
      cuda::MmaBF16(s[n + 1], f.q[i], {r[2], r[3]});
    }
  }
#pragma unroll
  for (std::uint32_t n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(
          &shared.scores[Group()][FragmentRow(half)][8 * n + 2 * (lane % 4)]) = {
          s[n][2 * half], s[n][2 * half + 1]};
    }
  }
}

// Softmax state of a row. Eight threads share the row. `state.sum` is the partial sum of this
// thread.
struct Softmax {
  std::uint32_t position;
  State state;
};

// Adds the partial products of the column groups and converts the scores to weights, four tokens
// per thread.
__device__ __forceinline__ void Weigh(float scale_log2, std::uint32_t first, Shared& shared,
                                      Softmax& softmax) {
  constexpr std::uint32_t kTokens = kTile / 8;
  const std::uint32_t row = cuda::ThreadIndex() / 8;
  const std::uint32_t column = cuda::ThreadIndex() % 8 * kTokens;
  float s[kTokens];
  float largest = kNoScore;
#pragma unroll
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    float dot = shared.scores[0][row][column + t];
#pragma unroll
    for (std::uint32_t g = 1; g < kGroups; ++g) {
      dot = cuda::Add(dot, shared.scores[g][row][column + t]);
    }
    const bool visible = CausalVisible(softmax.position, first + column + t);
    s[t] = visible ? cuda::Mul(dot, scale_log2) : kNoScore;
    largest = cuda::Max(largest, s[t]);
  }
#pragma unroll
  for (std::uint32_t mask = 1; mask < 8; mask *= 2) {
    largest = cuda::Max(largest, cuda::ShuffleXor(largest, mask));
  }
  const float before = softmax.state.max;
  softmax.state.max = cuda::Max(before, largest);
  const float base = ScoreBase<DeviceMath>(softmax.state.max);
  const float factor = cuda::Exp2Approx(cuda::Sub(before, base));
  float total = cuda::Mul(softmax.state.sum, factor);
#pragma unroll
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    s[t] = cuda::Exp2Approx(cuda::Sub(s[t], base));
    total = cuda::Add(total, s[t]);
  }
  softmax.state.sum = total;
  auto* const to = reinterpret_cast<std::uint32_t*>(&shared.weights[row][column]);
  to[0] = cuda::PackBF16(s[0], s[1]);
  to[1] = cuda::PackBF16(s[2], s[3]);
  if (cuda::ThreadIndex() % 8 == 0) shared.factor[row] = factor;
}

// o = o * factor + P V.
__device__ __forceinline__ void AddValues(const std::byte* tile, const Shared& shared,
                                          Fragments& f) {
  const std::uint32_t lane = cuda::Lane();
  const float factor[2] = {shared.factor[FragmentRow(0)], shared.factor[FragmentRow(1)]};
#pragma unroll
  for (std::uint32_t i = 0; i < kValueTiles; ++i) {
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) f.o[i][j] = cuda::Mul(f.o[i][j], factor[j / 2]);
  }
#pragma unroll
  for (std::uint32_t k = 0; k < kTile / 16; ++k) {
    std::uint32_t p[4];
    cuda::LdMatrixX4(p, &shared.weights[Half() * 16 + lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
    for (std::uint32_t i = 0; i < kValueTiles; i += 2) {
      std::uint32_t r[4];
      cuda::LdMatrixX4Trans(r,
                            tile + At(16 * k + lane % 16, Group() * kValueTiles + i + lane / 16));
      cuda::MmaBF16(f.o[i], p, {r[0], r[1]});
      cuda::MmaBF16(f.o[i + 1], p, {r[2], r[3]});
    }
  }
}

// Adds up the row's partial sums and copies the state of the span to shared memory for all threads.
__device__ __forceinline__ void ShareState(Softmax& softmax, Shared& shared) {
  float sum = softmax.state.sum;
#pragma unroll
  for (std::uint32_t mask = 1; mask < 8; mask *= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  const std::uint32_t row = cuda::ThreadIndex() / 8;
  if (cuda::ThreadIndex() % 8 == 0) {
    shared.max[row] = softmax.state.max;
    shared.sum[row] = sum;
  }
  softmax.state = State();
  cuda::SyncBlock();
}

// Calls fn(half, row, MMA tile, column) for every pair of columns of this thread.
template <typename Fn>
__device__ __forceinline__ void ForEachPair(Fn fn) {
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t row = FragmentRow(half);
#pragma unroll
    for (std::uint32_t i = 0; i < kValueTiles; ++i) {
      fn(half, row, i, (Group() * kValueTiles + i) * 8 + 2 * (cuda::Lane() % 4));
    }
  }
}

__device__ __forceinline__ void WriteOutput(const LatentRows& rows, const Fragments& f,
                                            const float* max, const float* sum) {
  ForEachPair([&](std::uint32_t half, std::uint32_t row, std::uint32_t i, std::uint32_t column) {
    if (row >= rows.count || column >= rows.args.value_columns) return;
    const State state{max[row], sum[row]};
    *reinterpret_cast<std::uint32_t*>(rows.args.out + rows.Offset(row, rows.args.out_stride) +
                                      column) =
        cuda::PackBF16(FinishValue(state, f.o[i][2 * half]),
                       FinishValue(state, f.o[i][2 * half + 1]));
  });
}

// Writes the span's state to `partial`. StorePartial and ReducePartial skip rows beyond the item's
// count. For one token of a model with 16 heads, half of the rows are skipped.
__device__ __forceinline__ void StorePartial(const LatentRows& rows, const Shared& shared,
                                             const Fragments& f, float* partial) {
  ForEachPair([&](std::uint32_t half, std::uint32_t row, std::uint32_t i, std::uint32_t column) {
    if (row >= rows.count) return;
    *reinterpret_cast<float2*>(partial + row * kValues + column) = {f.o[i][2 * half],
                                                                    f.o[i][2 * half + 1]};
  });
  if (cuda::ThreadIndex() < rows.count) {
    float* const states = partial + rows.count * kValues + cuda::ThreadIndex();
    states[0] = shared.max[cuda::ThreadIndex()];
    states[rows.count] = shared.sum[cuda::ThreadIndex()];
  }
}

// Reduces the state at `partial` (left) and the span's state (right). Stores the values in f, the
// maximum and sum in row_max and row_sum. A row that sees no key of the span takes the values at
// `partial`.
__device__ __forceinline__ void ReducePartial(const LatentRows& rows, Shared& shared, Fragments& f,
                                              const float* partial) {
  ForEachPair([&](std::uint32_t half, std::uint32_t row, std::uint32_t i, std::uint32_t column) {
    if (row >= rows.count) return;
    const float2 left = *reinterpret_cast<const float2*>(partial + row * kValues + column);
    if (shared.max[row] == kNoScore) {
      f.o[i][2 * half] = left.x;
      f.o[i][2 * half + 1] = left.y;
      return;
    }
    State state{shared.row_max[row], shared.row_sum[row]};
    const Reduce reduce = ReduceState(&state, State{shared.max[row], shared.sum[row]});
    f.o[i][2 * half] = ReduceValue(reduce, left.x, f.o[i][2 * half]);
    f.o[i][2 * half + 1] = ReduceValue(reduce, left.y, f.o[i][2 * half + 1]);
  });
  cuda::SyncBlock();
  const std::uint32_t row = cuda::ThreadIndex();
  if (row < kRows && shared.max[row] != kNoScore) {
    State state{shared.row_max[row], shared.row_sum[row]};
    ReduceState(&state, State{shared.max[row], shared.sum[row]});
    shared.row_max[row] = state.max;
    shared.row_sum[row] = state.sum;
  }
  cuda::SyncBlock();
}

// Initializes the row states from the first span, if one block computes several spans.
__device__ __forceinline__ void StartRow(Shared& shared) {
  const std::uint32_t row = cuda::ThreadIndex();
  if (row >= kRows) return;
  shared.row_max[row] = shared.max[row];
  shared.row_sum[row] = shared.sum[row];
}

__device__ void LatentItem(const LatentArgs& args, const LatentPlace& place, bool is_split,
                           Shared& shared) {
  const LatentRows rows(args, place);
  const LatentTiles<kTile> tiles(rows, place, is_split);
  if (tiles.first >= tiles.end) return;
  float* const partial = LatentPartial(rows, place, is_split);
  CopyTile(rows, tiles.first, tiles.keys_end, shared.tiles[tiles.first % 2]);
  cuda::CpAsyncCommit();
  Fragments f;
  LoadQueries(rows, f);
  Softmax softmax{rows.Position(cuda::ThreadIndex() / 8), State()};
  for (std::uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    if (tile % tiles.kPerSpan == 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < kValueTiles; ++i) {
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) f.o[i][j] = 0;
      }
    }
    // After the barrier all threads see the tile, and no thread reads the previous tile any longer.
    cuda::CpAsyncWait<0>();
    cuda::SyncBlock();
    if (tile + 1 < tiles.end) {
      CopyTile(rows, tile + 1, tiles.keys_end, shared.tiles[(tile + 1) % 2]);
    }
    cuda::CpAsyncCommit();
    const std::byte* const current = shared.tiles[tile % 2];
    Scores(f, current, shared);
    cuda::SyncBlock();
    Weigh(args.scale_log2, tile * kTile, shared, softmax);
    cuda::SyncBlock();
    AddValues(current, shared, f);
    if (!tiles.EndsSpan(tile)) continue;
    ShareState(softmax, shared);
    const std::uint32_t span = tile / tiles.kPerSpan;
    const bool is_last = span + 1 == tiles.num_spans;
    if (is_split && tiles.num_spans > 1) {
      StorePartial(rows, shared, f, partial);
    } else if (span == 0 && is_last) {
      WriteOutput(rows, f, shared.max, shared.sum);
    } else if (span == 0) {
      StartRow(shared);
      StorePartial(rows, shared, f, partial);
    } else {
      ReducePartial(rows, shared, f, partial);
      if (is_last) {
        WriteOutput(rows, f, shared.row_max, shared.row_sum);
      } else {
        StorePartial(rows, shared, f, partial);
      }
    }
  }
  cuda::SyncBlock();  // shared memory may be reused
}

__global__ void __launch_bounds__(kThreads, 1)
    LatentKernel(const __grid_constant__ LatentArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  Shared& shared = *reinterpret_cast<Shared*>(cuda::SharedMemory16());
  const bool is_split = IsSplit(args);
  LatentFinder finder(args, is_split ? 0 : 1);
  LatentPlace place;
  for (std::uint32_t i = cuda::BlockX(); finder.Find(i, &place); i += cuda::GridX()) {
    LatentItem(args, place, is_split, shared);
  }
}

// Merges the partial results of a packed row's spans. Each thread computes two columns.
__device__ void MergeRow(const LatentArgs& args, const LatentPlace& place) {
  const LatentRows rows(args, place);
  const std::uint32_t row = place.index;
  const std::uint32_t num_spans = CeilDiv(rows.KeysEnd(), kLatentSpan);
  if (row >= rows.count || num_spans == 1) return;
  const std::uint32_t column = 2 * cuda::ThreadIndex();
  State state;
  float2 sum{0, 0};
  for (std::uint32_t span = 0; span < num_spans; ++span) {
    const float* const partial = LatentPartialOf(rows, place, span);
    const float2 values = *reinterpret_cast<const float2*>(partial + row * kValues + column);
    const float* const states = partial + rows.count * kValues + row;
    const State right{states[0], states[rows.count]};
    if (span == 0) {
      state = right;
      sum = values;
    } else if (right.max != kNoScore) {
      const Reduce reduce = ReduceState(&state, right);
      sum = {ReduceValue(reduce, sum.x, values.x), ReduceValue(reduce, sum.y, values.y)};
    }
  }
  if (column >= args.value_columns) return;
  *reinterpret_cast<std::uint32_t*>(args.out + rows.Offset(row, args.out_stride) + column) =
      cuda::PackBF16(FinishValue(state, sum.x), FinishValue(state, sum.y));
}

__global__ void __launch_bounds__(kThreads)
    LatentMergeKernel(const __grid_constant__ LatentArgs args) {
  static_assert(2 * kThreads == kValues);
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  if (!IsSplit(args)) return;
  LatentFinder finder(args, args.block_rows);
  LatentPlace place;
  for (std::uint32_t i = cuda::BlockX(); finder.Find(i, &place); i += cuda::GridX()) {
    MergeRow(args, place);
  }
}

}  // namespace

absl::Status LaunchLatent(const CudaContext& context, const LatentArgs& args) {
  return cuda::Launch(context, "attention latent", LatentKernel,
                      {.blocks_x = std::min(args.num_sms, args.partial_rows / kRows),
                       .threads = kThreads,
                       .shared_bytes = sizeof(Shared),
                       .programmatic = true},
                      args);
}

absl::Status LaunchLatentMerge(const CudaContext& context, const LatentArgs& args) {
  return cuda::Launch(context, "attention latent merge", LatentMergeKernel,
                      {.blocks_x = 4 * args.num_sms, .threads = kThreads, .programmatic = true},
                      args);
}

}  // namespace quire::kernels::attention
