// Attention with heads of 129 to 256 columns over bf16 pages, as in Gemma. See README.md.
//
// The arithmetic is that of attention_decode.cuh and attention_prefill.cuh. The memory layout
// differs, because 64 tokens of K alone occupy 32 KB. Shared memory is a ring of slots that hold
// parts of tiles. Decode has three slots, each with K or V of 64 tokens. Prefill has two slots,
// each with K or V of 32 tokens. Prefill also keeps its queries in shared memory, because they do
// not fit into registers. A block uses at most 99 KB, the limit on compute capability 8.6 and 8.9.

#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_prefill.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kColumns = 256;
constexpr std::uint32_t kPieces = kColumns / 8;
static_assert(kColumns == kMaxWideHead);

// Returns the byte offset of a piece of a row in a slot of kRows rows.
template <std::uint32_t kRows>
__device__ __forceinline__ std::uint32_t PieceAt(std::uint32_t row, std::uint32_t piece) {
  return (piece >> 3) * (kRows * 128) + row * 128 + (((piece ^ row) & 7) << 4);
}

// Starts copying kRows tokens of K or V from `first` on. Eight threads copy 128 bytes of a row, so
// that a thread looks up the address of only every (kThreads / 8)th row.
template <std::uint32_t kRows, std::uint32_t kThreads>
__device__ __forceinline__ void CopyRows(const KvView<BF16>& view, const AttentionWork& item,
                                         std::uint32_t first, std::uint32_t keys_end,
                                         std::byte* slot) {
  constexpr std::uint32_t kRowsAtOnce = kThreads / 8;
  static_assert(kRows % kRowsAtOnce == 0);
  const std::uint32_t head_size = view.head_size();
#pragma unroll
  for (std::uint32_t i = 0; i < kRows / kRowsAtOnce; ++i) {
    const std::uint32_t row = cuda::ThreadIndex() / 8 + i * kRowsAtOnce;
    const std::uint32_t token = first + row;
    const BF16* const from =
        token < keys_end
            ? view.blocks + std::int64_t{view.row_idx(item.sequence, token)} * view.row_elements() +
                  std::int64_t{item.kv_head} * head_size
            : view.blocks;
#pragma unroll
    for (std::uint32_t j = 0; j < kPieces / 8; ++j) {
      const std::uint32_t piece = j * 8 + cuda::ThreadIndex() % 8;
      const bool valid = token < keys_end && piece * 8 < head_size;
      cuda::CpAsync16(slot + PieceAt<kRows>(row, piece), valid ? from + piece * 8 : view.blocks,
                      valid);
    }
  }
}

// A ring of slots for parts of tiles. Part n uses slot n mod kSlots. At most kSlots - 1 parts are
// being copied at a time. `copy(n, slot)` starts copying part n into `slot`.
template <std::uint32_t kSlots, std::uint32_t kSlotBytes>
struct Ring {
  std::byte* shared;
  std::uint32_t num_parts;
  std::uint32_t part = 0;
  std::uint32_t slot = 0;

  template <typename Copy>
  __device__ __forceinline__ void Start(const Copy& copy) {
#pragma unroll
    for (std::uint32_t i = 0; i < kSlots - 1; ++i) {
      if (i < num_parts) copy(i, shared + i * kSlotBytes);
      cuda::CpAsyncCommit();
    }
  }
  // Returns the next part after it has arrived.
  template <typename Copy>
  __device__ __forceinline__ std::byte* Next(const Copy& copy) {
    const std::uint32_t free_slot = slot == 0 ? kSlots - 1 : slot - 1;
    std::byte* const current = shared + slot * kSlotBytes;
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    // After the barrier all threads see the part, and no thread reads the previous part any longer.
    cuda::CpAsyncWait<kSlots - 2>();
    cuda::SyncBlock();
    if (part + kSlots - 1 < num_parts) copy(part + kSlots - 1, shared + free_slot * kSlotBytes);
    cuda::CpAsyncCommit();
    ++part;
    return current;
  }
};

// Decode: the parts alternate between K and V of a tile.
using DecodeTile = TileShape<BF16, kColumns>;
// A slot also holds the warps' states at the end of a span.
constexpr std::uint32_t kDecodeSlotBytes =
    4 * kDecodeWarps * (DecodeShape<BF16, kColumns>::kWarpFloats + 2 * kDecodeRows);
static_assert(kDecodeSlotBytes >= DecodeTile::kBytes && kDecodeSlotBytes % 128 == 0);
using DecodeRing = Ring<3, kDecodeSlotBytes>;
constexpr std::uint32_t kDecodeBytes = 3 * kDecodeSlotBytes;
static_assert(kDecodeBytes <= 99 * 1024);

__device__ __forceinline__ void DecodeWide(const TileArgs<BF16>& args, const AttentionWork& item) {
  std::byte* const shared = cuda::SharedMemory16();
  const ItemRows<BF16> rows(args, item);
  const std::uint32_t keys_end = rows.KeysEnd();
  const auto [first, end] = TilesOf(rows, keys_end);
  const auto copy = [&, tile = first](std::uint32_t part, std::byte* slot) {
    CopyRows<kKvTile, kDecodeThreads>(part % 2 == 0 ? args.keys : args.values, item,
                                      (tile + part / 2) * kKvTile, keys_end, slot);
  };
  DecodeRing ring{shared, end > first ? 2 * (end - first) : 0};
  ring.Start(copy);
  DecodeWarp<BF16, kColumns> warp;
  warp.LoadQueries(rows);
  warp.Clear();
  RowReduction<kColumns> reduce;
  reduce.Clear();
  for (std::uint32_t tile = first; tile < end; ++tile) {
    std::byte* values = nullptr;
    warp.Tile64(ring.Next(copy), tile, args.scale_log2, args.rules,
                [&] { return values = ring.Next(copy); });
    EndTile<BF16, kColumns>({tile, end}, reinterpret_cast<float*>(values), &warp, &reduce);
  }
  // All parts have arrived and have been read, so the flag may overwrite any slot.
  FinishItem<BF16, kColumns>(rows, reduce, reinterpret_cast<std::uint32_t*>(shared),
                             [] { cuda::SyncBlock(); });
}

__global__ void __launch_bounds__(kDecodeThreads, 2)
    DecodeWideKernel(const __grid_constant__ TileArgs<BF16> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t count = args.lists.counts->decode;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    DecodeWide(args, args.lists.decode[i]);
    cuda::SyncBlock();  // the slots may be reused
  }
}

// Prefill: the parts of a tile are the two halves of K, then the two halves of V. The queries
// precede them in shared memory.
constexpr std::uint32_t kHalf = kKvTile / 2;
constexpr std::uint32_t kQueryBytes = kPrefillRows * kColumns * 2;
constexpr std::uint32_t kHalfBytes = kHalf * kColumns * 2;
using PrefillRing = Ring<2, kHalfBytes>;
constexpr std::uint32_t kPrefillBytes = kQueryBytes + 2 * kHalfBytes;
static_assert(kPrefillBytes <= 99 * 1024);

struct WideWarp : PrefillWarp<BF16, kColumns> {
  const std::byte* queries;  // queries of all rows

  // Copies the queries of the warp's rows, which no other warp reads. Rows beyond the item's count
  // are zeros.
  __device__ __forceinline__ void LoadQueries(const ItemRows<BF16>& rows, std::byte* to) {
    queries = to;
    const std::uint32_t head_size = rows.args.keys.head_size();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t row = cuda::Warp() * 16 + cuda::Lane() / 4 + 8 * half;
      const bool valid = row < rows.item.num_rows;
      const BF16* const from =
          rows.args.q + (valid ? rows.Offset(row, rows.args.q_stride) : std::int64_t{0});
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        // Rows of q are aligned to 8 bytes (four columns).
        const std::uint32_t column = 16 * i + 4 * (cuda::Lane() % 4);
        uint2 q{0, 0};
        if (valid && column < head_size) q = *reinterpret_cast<const uint2*>(from + column);
        *reinterpret_cast<uint2*>(to + PieceAt<kPrefillRows>(row, column / 8) + column % 8 * 2) = q;
      }
    }
    cuda::SyncWarp();
  }

  // Computes s for the kHalf tokens of the tile from token kHalf * half on.
  __device__ __forceinline__ void HalfScores(const std::byte* keys, std::uint32_t half,
                                             float (&s)[kTokens][4]) const {
    const std::uint32_t lane = cuda::Lane();
    const std::uint32_t query = cuda::Warp() * 16 + lane % 16;
    const std::uint32_t row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      std::uint32_t a[4];
      cuda::LdMatrixX4(a, queries + PieceAt<kPrefillRows>(query, 2 * i + lane / 16));
#pragma unroll
      for (std::uint32_t n = 0; n < kTokens / 2; n += 2) {
        std::uint32_t r[4];
        cuda::LdMatrixX4(r, keys + PieceAt<kHalf>(8 * n + row, 2 * i + lane / 8 % 2));
        float(&low)[4] = s[half * (kTokens / 2) + n];
        float(&high)[4] = s[half * (kTokens / 2) + n + 1];
        cuda::MmaBF16(low, a, {r[0], r[1]});
        cuda::MmaBF16(high, a, {r[2], r[3]});
      }
    }
  }

  __device__ __forceinline__ void AddHalf(const std::byte* values, std::uint32_t half,
                                          const float (&s)[kTokens][4]) {
    const std::uint32_t lane = cuda::Lane();
#pragma unroll
    for (std::uint32_t n = 0; n < kTokens / 2; n += 2) {
      const float(&low)[4] = s[half * (kTokens / 2) + n];
      const float(&high)[4] = s[half * (kTokens / 2) + n + 1];
      const std::uint32_t p[4] = {cuda::PackBF16(low[0], low[1]), cuda::PackBF16(low[2], low[3]),
                                  cuda::PackBF16(high[0], high[1]),
                                  cuda::PackBF16(high[2], high[3])};
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        std::uint32_t r[4];
        cuda::LdMatrixX4Trans(r, values + PieceAt<kHalf>(8 * n + lane % 16, 2 * i + lane / 16));
        cuda::MmaBF16(o[2 * i], p, {r[0], r[1]});
        cuda::MmaBF16(o[2 * i + 1], p, {r[2], r[3]});
      }
    }
  }
};

__device__ __forceinline__ void PrefillWide(const TileArgs<BF16>& args, const AttentionWork& item) {
  std::byte* const shared = cuda::SharedMemory16();
  const ItemRows<BF16> rows(args, item);
  const std::uint32_t keys_end = rows.KeysEnd();
  const std::uint32_t first = rows.FirstTile();
  const std::uint32_t end = (keys_end + kKvTile - 1) / kKvTile;
  const auto copy = [&](std::uint32_t part, std::byte* slot) {
    CopyRows<kHalf, kPrefillThreads>(part % 4 < 2 ? args.keys : args.values, item,
                                     (first + part / 4) * kKvTile + part % 2 * kHalf, keys_end,
                                     slot);
  };
  PrefillRing ring{shared + kQueryBytes, 4 * (end - first)};
  ring.Start(copy);
  WideWarp warp;
  warp.LoadQueries(rows, shared);
  warp.Clear(rows);
  for (std::uint32_t tile = first; tile < end; ++tile) {
    float s[WideWarp::kTokens][4] = {};
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) warp.HalfScores(ring.Next(copy), half, s);
    WideWarp::ScaleScores(args.scale_log2, args.rules.cap_log2, s);
    warp.Softmax(tile * kKvTile, args.rules, s);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) warp.AddHalf(ring.Next(copy), half, s);
  }
  warp.Write(rows);
}

__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillWideKernel(const __grid_constant__ TileArgs<BF16> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t count = args.lists.counts->prefill;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    PrefillWide(args, args.lists.prefill[i]);
    cuda::SyncBlock();  // queries and slots may be reused
  }
}

}  // namespace

absl::Status LaunchDecodeWide(const CudaContext& context, const TileArgs<BF16>& args,
                              std::uint32_t blocks) {
  return cuda::Launch(context, "attention decode wide", DecodeWideKernel,
                      {.blocks_x = blocks,
                       .threads = kDecodeThreads,
                       .shared_bytes = kDecodeBytes,
                       .programmatic = true},
                      args);
}

absl::Status LaunchPrefillWide(const CudaContext& context, const TileArgs<BF16>& args,
                               std::uint32_t blocks) {
  return cuda::Launch(context, "attention prefill wide", PrefillWideKernel,
                      {.blocks_x = blocks,
                       .threads = kPrefillThreads,
                       .shared_bytes = kPrefillBytes,
                       .programmatic = true},
                      args);
}

}  // namespace quire::kernels::attention
