// MLA on compute capability 9.0. A block processes 64 packed rows of one KV head. K has up to 576
// columns of bf16, the first 512 of which are V. Tiles of 64 tokens are loaded by TMA, and products
// use wgmma. See README.md.
//
// One warp is the producer. It loads one box per page and slab of 64 columns into a ring of two
// tiles of 72 KB. Two warpgroups are consumers. Each consumer computes the scores of half of the
// tile's tokens, and half of the output columns. Weights (8 KB) and row maxima are exchanged
// through shared memory. Scores, states and output stay in registers. A tile is thus loaded once
// for K and V, and no product is computed twice.
//
// Items, spans of 1024 tokens and their reduction are those of attention_latent_cuda.cu. The merge
// kernel of that file also merges the partial results of this kernel. Tiles start at absolute
// multiples of 64. The bits of a row do not depend on prompt chunking, the batch or the split.
//
// The division of V's columns among two warpgroups is from FlashMLA.

#include <cuda.h>

#include <algorithm>

#include "kernels/attention/attention_latent.cuh"
#include "kernels/attention/attention_launch_sm90.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kRows = kLatentBlockRowsSm90;
constexpr std::uint32_t kTile = kKvTile;  // tokens
constexpr std::uint32_t kStages = 2;
constexpr std::uint32_t kGroups = 2;  // consumer warpgroups
constexpr std::uint32_t kGroupThreads = 128;
constexpr std::uint32_t kConsumerThreads = kGroups * kGroupThreads;
constexpr std::uint32_t kConsumerWarps = kConsumerThreads / cuda::kWarpSize;
// One producer warp is enough, but ptxas allocates registers to whole warpgroups.
constexpr std::uint32_t kThreads = kConsumerThreads + kGroupThreads;
constexpr std::uint32_t kGroupTokens = kTile / kGroups;  // tokens whose scores one group computes
constexpr std::uint32_t kGroupValues = kMaxLatentValues / kGroups;  // columns of V of a group
constexpr std::uint32_t kSlabs = kMaxLatentColumns / 64;
constexpr std::uint32_t kSlabBytes = 64 * 128;  // 64 columns of a tile or of the queries
constexpr std::uint32_t kTileBytes = kSlabs * kSlabBytes;
constexpr std::uint32_t kConsumerBarrier = 1;
static_assert(kRows == 64 && kTile == 64);

using Tiles = LatentTiles<kTile>;

// The byte arrays consist of slabs: rows of 64 columns with 128-byte swizzle.
struct Shared {
  std::byte queries[kTileBytes];
  std::byte tiles[kStages][kTileBytes];
  std::byte weights[kSlabBytes];  // weights of 64 tokens per row
  float max[kGroups][kRows];      // maximum of a group's scores in the tile
  float sum[kGroups][kRows];      // sum of a group's weights in the span
  cuda::PipelineBarriers<kStages> pipeline;
};
static_assert(sizeof(Shared) + cuda::kSharedAlignment <= 227 * 1024);

// Runs the producer warp. Its lanes issue the boxes of a tile in turn. Columns beyond a row are
// zero-filled.
__device__ __forceinline__ void Produce(const LatentArgs& args, const CUtensorMap* map,
                                        bool is_split, Shared& shared) {
  const std::uint32_t page = args.rows.page_size();
  const std::uint32_t box_rows = page < kTile ? page : kTile;
  const std::uint32_t boxes = kTile / box_rows;  // per slab
  cuda::PipelineCursor<kStages> cursor;
  LatentFinder finder(args, is_split ? 0 : 1);
  LatentPlace place;
  for (std::uint32_t i = cuda::BlockX(); finder.Find(i, &place); i += cuda::GridX()) {
    const LatentRows rows(args, place);
    const Tiles tiles(rows, place, is_split);
    for (std::uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
      cuda::BarrierWait(&shared.pipeline.empty[cursor.stage], cursor.parity ^ 1);
      if (cuda::Lane() == 0) cuda::BarrierExpect(&shared.pipeline.full[cursor.stage], kTileBytes);
      cuda::SyncWarp();
      for (std::uint32_t box = cuda::Lane(); box < boxes * kSlabs; box += cuda::kWarpSize) {
        const std::uint32_t slab = box / boxes;
        const std::uint32_t row = box % boxes * box_rows;
        const std::uint32_t from = args.rows.row_idx(place.sequence, tile * kTile + row);
        cuda::TmaLoad3D(shared.tiles[cursor.stage] + slab * kSlabBytes + row * 128, map,
                        &shared.pipeline.full[cursor.stage], static_cast<std::int32_t>(slab * 64),
                        0, static_cast<std::int32_t>(from), cuda::L2Hint::kNormal);
      }
      cursor.Advance();
    }
  }
}

// Returns the byte offset of a 16-byte piece of a row. A matrix consists of consecutive slabs of 64
// columns.
__device__ __forceinline__ std::uint32_t At(std::uint32_t row, std::uint32_t piece) {
  return piece / 8 * kSlabBytes + row * 128 + ((piece ^ row) & 7) * 16;
}

__device__ __forceinline__ void SyncConsumers() {
  cuda::NamedSync(kConsumerBarrier, kConsumerThreads);
}

// State of one thread of a consumer warpgroup, for rows `row` and `row` + 8 of the block. Both
// groups process all rows and have the same row states.
struct Consumer {
  Shared& shared;
  const std::uint32_t group;
  const std::uint32_t row;
  const float scale_log2;
  cuda::PipelineCursor<kStages> cursor;
  std::uint32_t position[2];
  float max[2];     // maximum of the span
  float sum[2];     // partial sum of this lane
  State before[2];  // states of the preceding spans
  float factor[2];  // rescaling factor of the sums over the preceding tiles
  float s[kGroupTokens / 2];
  float o[kGroupValues / 2];

  __device__ __forceinline__ Consumer(const LatentArgs& args, Shared& memory)
      : shared(memory),
        group(cuda::Warp() / 4),
        row(cuda::Warp() % 4 * 16 + cuda::Lane() / 4),
        scale_log2(args.scale_log2),
        o{} {}

  // Copies queries to shared memory. Rows and columns that do not exist are zero-filled. No thread
  // still reads the old queries, because the preceding item ended with a barrier after its last
  // product.
  __device__ __forceinline__ void Start(const LatentRows& rows) {
    constexpr std::uint32_t kRowThreads = kConsumerThreads / kRows;
    const std::uint32_t item_row = cuda::ThreadIndex() / kRowThreads;
    const std::uint32_t first = cuda::ThreadIndex() % kRowThreads;
    const bool exists = item_row < rows.count;
    const BF16* const from =
        rows.args.q + (exists ? rows.Offset(item_row, rows.args.q_stride) : std::int64_t{0});
#pragma unroll
    for (std::uint32_t j = 0; j < kMaxLatentColumns / 8 / kRowThreads; ++j) {
      const std::uint32_t piece = first + j * kRowThreads;
      uint4 q{0, 0, 0, 0};
      if (exists && piece * 8 < rows.args.rows.head_size()) {
        q = *reinterpret_cast<const uint4*>(from + piece * 8);
      }
      *reinterpret_cast<uint4*>(shared.queries + At(item_row, piece)) = q;
    }
    cuda::FenceAsyncShared();
    SyncConsumers();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) position[half] = rows.Position(row + 8 * half);
  }
  __device__ __forceinline__ void StartSpan() {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      max[half] = kNoScore;
      sum[half] = 0;
    }
  }

  // Zeroes tokens from `valid` on, because a page may contain another sequence's old bytes, and 0 x
  // NaN is NaN.
  __device__ __forceinline__ void ClearTail(std::uint32_t valid) const {
    std::byte* const tile = shared.tiles[cursor.stage];
#pragma unroll 1
    for (std::uint32_t slab = 0; slab < kSlabs; ++slab) {
#pragma unroll 1
      for (std::uint32_t i = valid * 8 + cuda::ThreadIndex(); i < kTile * 8;
           i += kConsumerThreads) {
        *reinterpret_cast<uint4*>(tile + slab * kSlabBytes + i * 16) = uint4{0, 0, 0, 0};
      }
    }
    cuda::FenceAsyncShared();
    SyncConsumers();
  }
  // Computes s = Q K^T for this group's tokens.
  __device__ __forceinline__ void Scores() {
    std::uint64_t a = cuda::WgmmaDescriptor(shared.queries, 0, 1024, cuda::SharedSwizzle::k128B);
    std::uint64_t b = cuda::WgmmaDescriptor(shared.tiles[cursor.stage] + group * kGroupTokens * 128,
                                            0, 1024, cuda::SharedSwizzle::k128B);
    cuda::WgmmaPin(a);
    cuda::WgmmaPin(b);
    cuda::WgmmaPin(s);
    cuda::WgmmaFence();
#pragma unroll
    for (std::uint32_t k = 0; k < kMaxLatentColumns / 16; ++k) {
      const std::uint32_t at = (k / 4 * kSlabBytes + k % 4 * 32) / 16;
      cuda::WgmmaShared<kGroupTokens>(s, a + at, b + at, k > 0);
    }
    cuda::WgmmaCommit();
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(s);
  }
  __device__ __forceinline__ void Mask(std::uint32_t first_token) {
#pragma unroll
    for (std::uint32_t i = 0; i < kGroupTokens / 2; ++i) {
      const std::uint32_t token =
          first_token + group * kGroupTokens + i / 4 * 8 + 2 * (cuda::Lane() % 4) + i % 2;
      if (!CausalVisible(position[i / 2 % 2], token)) s[i] = kNoScore;
    }
  }
  // Computes the row maxima over both groups.
  __device__ __forceinline__ void Maxima() {
    float largest[2] = {kNoScore, kNoScore};
#pragma unroll
    for (std::uint32_t i = 0; i < kGroupTokens / 2; ++i) {
      largest[i / 2 % 2] = cuda::Max(largest[i / 2 % 2], s[i]);
    }
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      largest[half] = cuda::Max(largest[half], cuda::ShuffleXor(largest[half], 1));
      largest[half] = cuda::Max(largest[half], cuda::ShuffleXor(largest[half], 2));
      if (cuda::Lane() % 4 == 0) shared.max[group][row + 8 * half] = largest[half];
    }
    SyncConsumers();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const float all = cuda::Max(largest[half], shared.max[group ^ 1][row + 8 * half]);
      const float last = max[half];
      max[half] = cuda::Max(last, cuda::Mul(all, scale_log2));
      factor[half] = cuda::Exp2Approx(cuda::Sub(last, ScoreBase<DeviceMath>(max[half])));
    }
  }
  // Converts scores to bf16 weights in shared memory, in the layout that wgmma reads.
  __device__ __forceinline__ void Weigh() {
    const float base[2] = {ScoreBase<DeviceMath>(max[0]), ScoreBase<DeviceMath>(max[1])};
    float total[2] = {0, 0};
#pragma unroll
    for (std::uint32_t i = 0; i < kGroupTokens / 2; ++i) {
      const std::uint32_t half = i / 2 % 2;
      s[i] = cuda::Exp2Approx(cuda::Fma(s[i], scale_log2, -base[half]));
      total[half] = cuda::Add(total[half], s[i]);
    }
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      sum[half] = cuda::Fma(sum[half], factor[half], total[half]);
    }
    static_assert(kGroupTokens == 32);
    std::uint32_t at[1] = {At(row, group * 4) + cuda::Lane() % 4 * 4};
    cuda::WgmmaPin(at);  // one register for the loop over tiles instead of one per piece
#pragma unroll
    for (std::uint32_t j = 0; j < kGroupTokens / 8; ++j) {
      std::byte* const to = shared.weights + (at[0] ^ (j * 16));
      *reinterpret_cast<std::uint32_t*>(to) = cuda::PackBF16(s[4 * j], s[4 * j + 1]);
      *reinterpret_cast<std::uint32_t*>(to + 8 * 128) = cuda::PackBF16(s[4 * j + 2], s[4 * j + 3]);
    }
    cuda::FenceAsyncShared();
  }
  // Multiplies o by `factor`. Skips the multiplication if all factors of the warp are 1, which is
  // common after a few tiles.
  __device__ __forceinline__ void Rescale() {
    if (!cuda::AnyLane(factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (std::uint32_t i = 0; i < kGroupValues / 2; ++i) {
      o[i] = cuda::Mul(o[i], factor[i / 2 % 2]);
    }
  }
  // Computes o += P V for this group's columns. The first tile of a span overwrites o instead,
  // because zeroing o would take 128 selects per tile.
  __device__ __forceinline__ void AddValues(bool starts_span) {
    std::uint64_t a = cuda::WgmmaDescriptor(shared.weights, 0, 1024, cuda::SharedSwizzle::k128B);
    std::uint64_t b =
        cuda::WgmmaDescriptor(shared.tiles[cursor.stage] + group * (kGroupValues / 64) * kSlabBytes,
                              kSlabBytes, 1024, cuda::SharedSwizzle::k128B);
    cuda::WgmmaPin(a);
    cuda::WgmmaPin(b);
    cuda::WgmmaPin(o);
    cuda::WgmmaFence();
#pragma unroll
    for (std::uint32_t k = 0; k < kTile / 16; ++k) {
      cuda::WgmmaShared<kGroupValues, 1>(o, a + k * 32 / 16, b + k * (16 * 128) / 16,
                                         k > 0 || !starts_span);
    }
    cuda::WgmmaCommit();
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(o);
  }
  __device__ __forceinline__ void Tile(std::uint32_t first_token, std::uint32_t keys_end,
                                       std::uint32_t first_position) {
    const bool starts_span = first_token % kLatentSpan == 0;
    if (starts_span) StartSpan();
    cuda::BarrierWait(&shared.pipeline.full[cursor.stage], cursor.parity);
    if (keys_end - first_token < kTile) ClearTail(keys_end - first_token);
    Scores();
    if (first_position + 1 < first_token + kTile) Mask(first_token);
    Maxima();
    Weigh();
    Rescale();
    SyncConsumers();
    AddValues(starts_span);
    if (cuda::Lane() == 0) cuda::BarrierArrive(&shared.pipeline.empty[cursor.stage]);
    cursor.Advance();
  }

  // Computes the state of the span over both groups.
  __device__ __forceinline__ void EndSpan(State (&span)[2]) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      sum[half] = cuda::Add(sum[half], cuda::ShuffleXor(sum[half], 1));
      sum[half] = cuda::Add(sum[half], cuda::ShuffleXor(sum[half], 2));
      if (cuda::Lane() % 4 == 0) shared.sum[group][row + 8 * half] = sum[half];
    }
    SyncConsumers();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      span[half].max = max[half];
      span[half].sum = cuda::Add(shared.sum[0][row + 8 * half], shared.sum[1][row + 8 * half]);
    }
  }
  // Returns the row of registers 2 * half and 2 * half + 1 of every four. The row is recomputed at
  // the end of each span. Otherwise the compiler would keep the derived addresses in registers
  // during the loop over tiles.
  __device__ __forceinline__ std::uint32_t RowOf(std::uint32_t half) const {
    std::uint32_t at[1] = {row + 8 * half};
    cuda::WgmmaPin(at);
    return at[0];
  }
  // Returns the first output column of this thread. The thread's other column pairs follow in steps
  // of 8.
  __device__ __forceinline__ std::uint32_t Column() const {
    return group * kGroupValues + 2 * (cuda::Lane() % 4);
  }
  __device__ __forceinline__ void WriteOutput(const LatentRows& rows, const State (&states)[2]) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t at = RowOf(half);
      if (at >= rows.count) continue;
      BF16* const out = rows.args.out + rows.Offset(at, rows.args.out_stride) + Column();
#pragma unroll
      for (std::uint32_t i = 0; i < kGroupValues / 8; ++i) {
        if (Column() + 8 * i >= rows.args.value_columns) continue;
        *reinterpret_cast<std::uint32_t*>(out + 8 * i) =
            cuda::PackBF16(FinishValue(states[half], o[4 * i + 2 * half]),
                           FinishValue(states[half], o[4 * i + 2 * half + 1]));
      }
    }
  }
  // Writes the span's state to `partial`. StorePartial and ReducePartial skip rows beyond the
  // item's count.
  __device__ __forceinline__ void StorePartial(const LatentRows& rows, const State (&states)[2],
                                               float* partial) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t at = RowOf(half);
      if (at >= rows.count) continue;
      float* const to = partial + at * kMaxLatentValues + Column();
#pragma unroll
      for (std::uint32_t i = 0; i < kGroupValues / 8; ++i) {
        *reinterpret_cast<float2*>(to + 8 * i) = {o[4 * i + 2 * half], o[4 * i + 2 * half + 1]};
      }
      if (group == 0 && cuda::Lane() % 4 == 0) {
        float* const state = partial + rows.count * kMaxLatentValues + at;
        state[0] = states[half].max;
        state[rows.count] = states[half].sum;
      }
    }
  }
  // Reduces the state at `partial` (left) and the span's state (right). Stores the values in o, the
  // maximum and sum in `before`. A row that sees no key of the span takes the values at `partial`.
  __device__ __forceinline__ void ReducePartial(const LatentRows& rows, const State (&span)[2],
                                                const float* partial) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t at = RowOf(half);
      if (at >= rows.count) continue;
      const bool sees = span[half].max != kNoScore;
      Reduce reduce{1, 0};
      if (sees) reduce = ReduceState(&before[half], span[half]);
      const float* const from = partial + at * kMaxLatentValues + Column();
      // Number of pending loads. If all loads were pending, the compiler would spill registers.
      constexpr std::uint32_t kAtOnce = 16;
#pragma unroll
      for (std::uint32_t first = 0; first < kGroupValues / 8; first += kAtOnce) {
        float left[2 * kAtOnce];
#pragma unroll
        for (std::uint32_t i = 0; i < kAtOnce; ++i) {
          const float2 pair = *reinterpret_cast<const float2*>(from + 8 * (first + i));
          left[2 * i] = pair.x;
          left[2 * i + 1] = pair.y;
        }
        cuda::WgmmaPin(left);
#pragma unroll
        for (std::uint32_t i = 0; i < 2 * kAtOnce; ++i) {
          float& own = o[4 * (first + i / 2) + 2 * half + i % 2];
          own = sees ? ReduceValue(reduce, left[i], own) : left[i];
        }
      }
    }
  }

  __device__ __forceinline__ void Item(const LatentArgs& args, const LatentPlace& place,
                                       bool is_split) {
    const LatentRows rows(args, place);
    const Tiles tiles(rows, place, is_split);
    if (tiles.first >= tiles.end) return;
    float* const partial = LatentPartial(rows, place, is_split);
    const std::uint32_t first_position = rows.Position(0);
    Start(rows);
    for (std::uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
      Tile(tile * kTile, tiles.keys_end, first_position);
      if (!tiles.EndsSpan(tile)) continue;
      State span[2];
      EndSpan(span);
      const bool is_last = tile / tiles.kPerSpan + 1 == tiles.num_spans;
      if (is_split && tiles.num_spans > 1) {
        StorePartial(rows, span, partial);
        continue;
      }
      if (tile < tiles.kPerSpan) {
        before[0] = span[0];
        before[1] = span[1];
      } else {
        ReducePartial(rows, span, partial);
      }
      if (is_last) {
        WriteOutput(rows, before);
      } else {
        StorePartial(rows, before, partial);
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    LatentKernelSm90(const __grid_constant__ LatentArgs args,
                     const __grid_constant__ CUtensorMap map) {
  Shared& shared = *reinterpret_cast<Shared*>(cuda::SharedMemory());
  if (cuda::ThreadIndex() == 0) {
    shared.pipeline.Init(1, kConsumerWarps);
    cuda::BarrierInitFence();
    cuda::TmaPrefetchMap(&map);
  }
  cuda::SyncBlock();
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const bool is_split = IsSplit(args);
  if (cuda::Warp() >= kConsumerWarps) {
    cuda::LowerRegisters<40>();
    if (cuda::Warp() == kConsumerWarps) Produce(args, &map, is_split, shared);
  } else {
    cuda::RaiseRegisters<232>();
    Consumer consumer(args, shared);
    LatentFinder finder(args, is_split ? 0 : 1);
    LatentPlace place;
    // No code may follow the loop. Otherwise ptxas would limit the registers of the whole loop to
    // those that the launch allocates.
    for (std::uint32_t i = cuda::BlockX(); finder.Find(i, &place); i += cuda::GridX()) {
      consumer.Item(args, place, is_split);
    }
  }
}

}  // namespace

absl::Status LaunchLatentSm90(const CudaContext& context, const LatentArgs& args,
                              const cuda::TmaTile& rows) {
  return cuda::Launch(context, "attention latent sm_90a", LatentKernelSm90,
                      {.blocks_x = std::min(args.num_sms, args.partial_rows / kRows),
                       .threads = kThreads,
                       .shared_bytes = sizeof(Shared) + cuda::kSharedAlignment,
                       .programmatic = true},
                      args, rows.map());
}

}  // namespace quire::kernels::attention
