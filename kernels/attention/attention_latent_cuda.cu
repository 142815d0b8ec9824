// Attention over the rows of latent attention by tensor cores: one KV head whose rows, up to 576
// columns of bf16, are K, and whose first columns, up to 512, are V. Prompt and decode tokens
// alike, along one tree.
//
// A block takes 32 packed rows (row and query head; attention_work.h) and goes over their keys in
// tiles of 32 tokens, each read once for K and V. Eight warps are two halves of the rows by four
// groups of columns. Scores: a warp multiplies its 16 rows with a quarter of the columns, all
// tokens; the quarters are added in order through shared memory, where 8 threads a row do the
// softmax. Values: a warp multiplies its 16 rows of P with 128 columns of V. So a tile is read from
// shared memory by two warps and not eight, and queries (36 registers) and output (64) stay in
// registers. cp.async loads a tile while the one before it is multiplied.
//
// A span of 1024 tokens has a state of its own; spans are reduced left to right, in global memory:
// by the block itself, or, while row blocks are fewer than multiprocessors, every span is an item
// of its own and a second kernel reduces. Both do the same steps, so that the cut changes no bit.
// What a row does not see changes none either. Items are found by counting through the sequences,
// since only the device knows their lengths.

#include <algorithm>

#include "kernels/attention/attention_launch.h"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kRows = 32;       // packed rows of an item
constexpr std::uint32_t kTile = 32;       // tokens
constexpr std::uint32_t kSpan = 1024;     // tokens
constexpr std::uint32_t kColumns = 576;   // of K
constexpr std::uint32_t kValues = 512;    // of V
constexpr std::uint32_t kGroups = 4;      // of columns, a warp each for either half of the rows
constexpr std::uint32_t kSteps = kColumns / 16 / kGroups;        // MMA steps of a warp along K
constexpr std::uint32_t kValueTiles = kValues / 8 / kGroups;     // MMA tiles of a warp along V
constexpr std::uint32_t kRowBytes = kColumns * 2;
constexpr std::uint32_t kTileBytes = kTile * kRowBytes;
constexpr std::uint32_t kScorePitch = 40;  // floats: pairs of a half warp lie in different banks
constexpr std::uint32_t kWeightPitch = 40;  // bf16: rows for ldmatrix lie in different banks
static_assert(kThreads / cuda::kWarpSize == kRows / 16 * kGroups);
static_assert(kMaxLatentColumns == kColumns && kMaxLatentValues == kValues);
static_assert(kLatentPartialFloats == kRows * (kValues + 2));

struct Shared {
  std::byte tiles[2][kTileBytes];
  float scores[kGroups][kRows][kScorePitch];
  BF16 weights[kRows][kWeightPitch];
  float factor[kRows];  // of what was summed before the tile
  float max[kRows];     // of the span
  float sum[kRows];
  float row_max[kRows];  // of the spans before it
  float row_sum[kRows];
  std::uint32_t blocks[kThreads];  // of a sequence, while items are counted
  std::uint32_t spans[kThreads];
};
// What a block may have on the smallest of the GPUs that are supported, 8.6 and 8.9.
static_assert(sizeof(Shared) <= 99 * 1024);

__device__ __forceinline__ std::uint32_t CeilDiv(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}

// Blocks of packed rows of a sequence, and the spans of its keys.
__device__ __forceinline__ void Count(const LatentArgs& args, std::uint32_t sequence,
                                      std::uint32_t* blocks, std::uint32_t* spans) {
  *blocks = 0;
  *spans = 0;
  if (sequence >= args.batch_size) return;
  const std::uint32_t rows = args.row_offsets[sequence + 1] - args.row_offsets[sequence];
  if (rows == 0) return;
  *blocks = CeilDiv(rows * args.num_heads, kRows);
  *spans = CeilDiv(args.rows.cache_length(sequence) + rows, kSpan);
}

// Whether every span is an item: there are fewer row blocks than multiprocessors, and room.
__device__ bool IsCut(const LatentArgs& args, Shared& shared) {
  const std::uint32_t thread = cuda::ThreadIndex();
  std::uint32_t blocks = 0;
  std::uint32_t partials = 0;
  for (std::uint32_t first = 0; first < args.batch_size; first += kThreads) {
    Count(args, first + thread, &shared.blocks[thread], &shared.spans[thread]);
    cuda::SyncBlock();
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      blocks += shared.blocks[i];
      partials += shared.blocks[i] * shared.spans[i];
    }
    cuda::SyncBlock();
  }
  return blocks < args.num_sms && partials > blocks && partials <= args.max_partials;
}

// A block of packed rows, and which of the things counted of it.
struct Place {
  std::uint32_t sequence;
  std::uint32_t block;
  std::uint32_t index;
  std::uint32_t spans;
  std::uint32_t first_partial;  // of the block, if the step is cut
};

// Counts `each` things to a block of rows, 0: its spans, and finds thing after thing in growing
// order.
class Finder {
 public:
  __device__ Finder(const LatentArgs& args, std::uint32_t each) : args_(args), each_(each) {}

  // False: there are not as many.
  __device__ bool Find(std::uint32_t wanted, Shared& shared, Place* place) {
    const std::uint32_t thread = cuda::ThreadIndex();
    for (; first_ < args_.batch_size; first_ += kThreads) {
      Count(args_, first_ + thread, &shared.blocks[thread], &shared.spans[thread]);
      cuda::SyncBlock();
      std::uint32_t before = before_;
      std::uint32_t partials = partials_;
      for (std::uint32_t i = 0; i < kThreads; ++i) {
        const std::uint32_t spans = shared.spans[i];
        const std::uint32_t each = each_ == 0 ? spans : each_;
        const std::uint32_t count = shared.blocks[i] * each;
        if (wanted - before < count) {
          const std::uint32_t block = (wanted - before) / each;
          *place = {first_ + i, block, (wanted - before) % each, spans, partials + block * spans};
          cuda::SyncBlock();
          return true;
        }
        before += count;
        partials += shared.blocks[i] * spans;
      }
      cuda::SyncBlock();
      before_ = before;
      partials_ = partials;
    }
    return false;
  }

 private:
  const LatentArgs& args_;
  const std::uint32_t each_;
  std::uint32_t first_ = 0;     // sequence
  std::uint32_t before_ = 0;    // things of the sequences before it
  std::uint32_t partials_ = 0;  // likewise
};

// The packed rows of an item.
struct Rows {
  __device__ Rows(const LatentArgs& a, const Place& place)
      : args(a), sequence(place.sequence), first(place.block * kRows) {
    base = args.row_offsets[sequence];
    const std::uint32_t packed = (args.row_offsets[sequence + 1] - base) * args.num_heads;
    count = packed - first < kRows ? packed - first : kRows;
    cached = args.rows.cache_length(sequence);
  }
  // Rows beyond the last count as the last.
  __device__ __forceinline__ std::uint32_t Position(std::uint32_t row) const {
    return cached + (first + (row < count ? row : count - 1)) / args.num_heads;
  }
  // Elements from q or out to the head's first column. REQUIRES: row < count.
  __device__ __forceinline__ std::int64_t Offset(std::uint32_t row, std::int64_t stride) const {
    const std::uint32_t packed = first + row;
    return (std::int64_t{base} + packed / args.num_heads) * stride +
           std::int64_t{packed % args.num_heads} * args.rows.head_size();
  }

  const LatentArgs& args;
  std::uint32_t sequence;
  std::uint32_t first;
  std::uint32_t base;
  std::uint32_t count;
  std::uint32_t cached;
};

// Byte of 16-byte piece `piece` of token `row` in a tile: eight rows at one piece lie in different
// banks.
__device__ __forceinline__ std::uint32_t At(std::uint32_t row, std::uint32_t piece) {
  return row * kRowBytes + ((piece ^ (row & 7)) << 4);
}

// Starts the copies of a tile. Tokens that no row sees and columns beyond a cached row become
// zeros.
__device__ __forceinline__ void CopyTile(const Rows& rows, std::uint32_t tile,
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

// What one thread keeps of its warp's 16 rows.
struct Fragments {
  std::uint32_t q[kSteps][4];
  float o[kValueTiles][4];
};

__device__ __forceinline__ std::uint32_t Half() {
  return cuda::Warp() % 2;
}
__device__ __forceinline__ std::uint32_t Group() {
  return cuda::Warp() / 2;
}
// The row of registers 2 * half .. 2 * half + 1.
__device__ __forceinline__ std::uint32_t FragmentRow(std::uint32_t half) {
  return Half() * 16 + cuda::Lane() / 4 + 8 * half;
}

__device__ __forceinline__ void LoadQueries(const Rows& rows, Fragments& f) {
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

// This warp's share of the products of queries and keys.
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

// What a thread keeps of a row that it shares with seven others; the sum is its own share.
struct Softmax {
  std::uint32_t position;
  State state;
};

// The shares of the products become weights, four tokens a thread.
__device__ __forceinline__ void Weigh(float scale_log2, std::uint32_t first, Shared& shared,
                                      Softmax& softmax) {
  constexpr std::uint32_t kTokens = kTile / 8;
  const std::uint32_t row = cuda::ThreadIndex() / 8;
  const std::uint32_t column = cuda::ThreadIndex() % 8 * kTokens;
  float s[kTokens];
  float largest = kNoPromptLogprob;
#pragma unroll
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    float dot = shared.scores[0][row][column + t];
#pragma unroll
    for (std::uint32_t g = 1; g < kGroups; ++g) {
      dot = cuda::Add(dot, shared.scores[g][row][column + t]);
    }
    const bool visible = CausalVisible(softmax.position, first + column + t);
    s[t] = visible ? cuda::Mul(dot, scale_log2) : kNoPromptLogprob;
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
      cuda::LdMatrixX4Trans(
          r, tile + At(16 * k + lane % 16, Group() * kValueTiles + i + lane / 16));
      cuda::MmaBF16(f.o[i], p, {r[0], r[1]});
      cuda::MmaBF16(f.o[i + 1], p, {r[2], r[3]});
    }
  }
}

// The state of the span into shared memory, for all threads.
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

// fn(half, row, tile of MMA, column) of every pair of columns that this thread holds.
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

__device__ __forceinline__ void WriteOutput(const Rows& rows, const Fragments& f,
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

// Rows that the item lacks are left out here and in ReducePartial: with 16 heads they are half.
__device__ __forceinline__ void StorePartial(const Rows& rows, const Shared& shared,
                                             const Fragments& f, float* partial) {
  ForEachPair([&](std::uint32_t half, std::uint32_t row, std::uint32_t i, std::uint32_t column) {
    if (row >= rows.count) return;
    *reinterpret_cast<float2*>(partial + row * kValues + column) = {f.o[i][2 * half],
                                                                     f.o[i][2 * half + 1]};
  });
  if (cuda::ThreadIndex() < kRows) {
    partial[kRows * kValues + cuda::ThreadIndex()] = shared.max[cuda::ThreadIndex()];
    partial[kRows * (kValues + 1) + cuda::ThreadIndex()] = shared.sum[cuda::ThreadIndex()];
  }
}

// f becomes the values at `partial` and its own, reduced; the states likewise, in row_max and
// row_sum. A row that sees no key of the span is left as it was.
__device__ __forceinline__ void ReducePartial(const Rows& rows, Shared& shared, Fragments& f,
                                              const float* partial) {
  ForEachPair([&](std::uint32_t half, std::uint32_t row, std::uint32_t i, std::uint32_t column) {
    if (row >= rows.count) return;
    const float2 left = *reinterpret_cast<const float2*>(partial + row * kValues + column);
    if (shared.max[row] == kNoPromptLogprob) {
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
  if (row < kRows && shared.max[row] != kNoPromptLogprob) {
    State state{shared.row_max[row], shared.row_sum[row]};
    ReduceState(&state, State{shared.max[row], shared.sum[row]});
    shared.row_max[row] = state.max;
    shared.row_sum[row] = state.sum;
  }
  cuda::SyncBlock();
}

// The first span of several that one block computes.
__device__ __forceinline__ void StartRow(Shared& shared) {
  const std::uint32_t row = cuda::ThreadIndex();
  if (row >= kRows) return;
  shared.row_max[row] = shared.max[row];
  shared.row_sum[row] = shared.sum[row];
}

__device__ void LatentItem(const LatentArgs& args, const Place& place, bool is_cut,
                           Shared& shared) {
  const Rows rows(args, place);
  const std::uint32_t keys_end = rows.Position(kRows - 1) + 1;
  const std::uint32_t num_spans = CeilDiv(keys_end, kSpan);
  // Spans that only later rows of the sequence see have no item's work.
  if (is_cut && place.index >= num_spans) return;
  float* const partial =
      args.partials +
      std::int64_t{is_cut ? place.first_partial + place.index : cuda::BlockX()} *
          kLatentPartialFloats;
  constexpr std::uint32_t kTilesPerSpan = kSpan / kTile;
  const std::uint32_t first = is_cut ? place.index * kTilesPerSpan : 0;
  const std::uint32_t existing = CeilDiv(keys_end, kTile);
  const std::uint32_t end = is_cut && first + kTilesPerSpan < existing ? first + kTilesPerSpan
                                                                       : existing;
  CopyTile(rows, first, keys_end, shared.tiles[first % 2]);
  cuda::CpAsyncCommit();
  Fragments f;
  LoadQueries(rows, f);
  Softmax softmax{rows.Position(cuda::ThreadIndex() / 8), State()};
  for (std::uint32_t tile = first; tile < end; ++tile) {
    if (tile % kTilesPerSpan == 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < kValueTiles; ++i) {
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) f.o[i][j] = 0;
      }
    }
    // After the barrier the tile is here for all, and no thread reads the one before it any more.
    cuda::CpAsyncWait<0>();
    cuda::SyncBlock();
    if (tile + 1 < end) CopyTile(rows, tile + 1, keys_end, shared.tiles[(tile + 1) % 2]);
    cuda::CpAsyncCommit();
    const std::byte* const now = shared.tiles[tile % 2];
    Scores(f, now, shared);
    cuda::SyncBlock();
    Weigh(args.scale_log2, tile * kTile, shared, softmax);
    cuda::SyncBlock();
    AddValues(now, shared, f);
    if (tile % kTilesPerSpan != kTilesPerSpan - 1 && tile + 1 != end) continue;
    ShareState(softmax, shared);
    const std::uint32_t span = tile / kTilesPerSpan;
    const bool is_last = span + 1 == num_spans;
    if (is_cut && num_spans > 1) {
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
  cuda::SyncBlock();  // shared memory is free for the next item
}

__global__ void __launch_bounds__(kThreads, 1)
    LatentKernel(const __grid_constant__ LatentArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  Shared& shared = *reinterpret_cast<Shared*>(cuda::SharedMemory16());
  const bool is_cut = IsCut(args, shared);
  Finder finder(args, is_cut ? 0 : 1);
  Place place;
  for (std::uint32_t i = cuda::BlockX(); finder.Find(i, shared, &place); i += cuda::GridX()) {
    LatentItem(args, place, is_cut, shared);
  }
}

// A packed row whose spans were items of their own: two columns a thread.
__device__ void MergeRow(const LatentArgs& args, const Place& place) {
  const Rows rows(args, place);
  const std::uint32_t row = place.index;
  const std::uint32_t num_spans = CeilDiv(rows.Position(kRows - 1) + 1, kSpan);
  if (row >= rows.count || num_spans == 1) return;
  const std::uint32_t column = 2 * cuda::ThreadIndex();
  State state;
  float2 sum{0, 0};
  for (std::uint32_t span = 0; span < num_spans; ++span) {
    const float* const partial =
        args.partials + (std::int64_t{place.first_partial} + span) * kLatentPartialFloats;
    const float2 values = *reinterpret_cast<const float2*>(partial + row * kValues + column);
    const State right{partial[kRows * kValues + row], partial[kRows * (kValues + 1) + row]};
    if (span == 0) {
      state = right;
      sum = values;
    } else if (right.max != kNoPromptLogprob) {
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
  Shared& shared = *reinterpret_cast<Shared*>(cuda::SharedMemory16());
  if (!IsCut(args, shared)) return;
  Finder finder(args, kRows);
  Place place;
  for (std::uint32_t i = cuda::BlockX(); finder.Find(i, shared, &place); i += cuda::GridX()) {
    MergeRow(args, place);
  }
}

}  // namespace

absl::Status LaunchLatent(const CudaContext& context, const LatentArgs& args) {
  if (absl::Status status = cuda::Launch(context, "attention latent", LatentKernel,
                                         {.blocks_x = std::min(args.num_sms, args.max_partials),
                                          .threads = kThreads,
                                          .shared_bytes = sizeof(Shared),
                                          .programmatic = true},
                                         args);
      !status.ok()) {
    return status;
  }
  return cuda::Launch(context, "attention latent merge", LatentMergeKernel,
                      {.blocks_x = 4 * args.num_sms,
                       .threads = kThreads,
                       .shared_bytes = sizeof(Shared),
                       .programmatic = true},
                      args);
}

}  // namespace quire::kernels::attention
