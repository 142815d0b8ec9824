// Prefill over fp8_e4m3 and int8 pages on compute capability 9.0. The consumers are those of
// attention_prefill_sm90.cuh. They read bf16 tiles that the first warpgroup widens from bytes. See
// README.md.
//
// There are two stages of bytes in addition to the two bf16 stages. TMA loads the bytes of a tile,
// 16 KB of K followed by 16 KB of V, into a stage of bytes. Each thread of the widening warpgroup
// widens the row of one key. It loads the key's two scales while the previous tile is widened. Then
// it reads the row 16 bytes at a time, multiplies each element by the scale and rounds to bf16. It
// stores the result at the address where TMA would store the element of a 16-bit page. This is the
// arithmetic of the portable kernel (ScaledPair). The output is bitwise equal to the output over
// bf16 pages that contain these products.

#include "kernels/attention/attention_prefill_sm90.cuh"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kWidenWarps = kWarpgroupThreads / cuda::kWarpSize;
static_assert(kWarpgroupThreads == kPrefillKeys);

// Iterates over the tiles of the block's items, in the order in which the consumers process them.
template <typename T>
struct BlockTiles {
  const TileArgs<T>& args;
  std::uint32_t index = 0;  // index of the item
  std::uint32_t sequence = 0;
  std::uint32_t kv_head = 0;
  std::uint32_t keys_end = 0;
  std::uint32_t first = 0;
  std::uint32_t tile = 0;

  // Returns false if there is no item i.
  __device__ __forceinline__ bool Start(std::uint32_t i) {
    index = i;
    if (i >= args.lists.counts->prefill) return false;
    const AttentionWork item = args.lists.prefill[i];
    const ItemRows<T> rows(args, item);
    sequence = item.sequence;
    kv_head = item.kv_head;
    keys_end = rows.KeysEnd();
    first = FirstTile(rows);
    tile = TilesUpTo(keys_end) - 1;
    return true;
  }
  // Returns false after the last tile.
  __device__ __forceinline__ bool Advance() {
    if (tile == first) return Start(index + cuda::GridX());
    --tile;
    return true;
  }
};

// Scales of the key that this thread widens.
struct KeyScales {
  bool exists;
  float k_and_v[2];  // scale of K, scale of V
};

// Starts copying a tile's bytes with one warp. Lane l issues box l of K and box l of V.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void LoadBytes(const BlockTiles<T>& tiles, const CUtensorMap* keys,
                                          const CUtensorMap* values,
                                          const PrefillLayout<T, kColumns>& layout,
                                          const PrefillCursor& cursor) {
  constexpr std::uint32_t kNarrowTile = PrefillLayout<T, kColumns>::kNarrowTile;
  const std::uint32_t page = tiles.args.keys.page_size();
  const std::uint32_t box_rows = page < kKvTile ? page : kKvTile;
  const std::uint32_t row = cuda::Lane() * box_rows;
  PrefillPipeline* const pipeline = layout.narrow_pipeline();
  // Read before the wait, so that the wait hides the latency of the table lookup.
  const std::uint32_t from =
      row < kPrefillKeys ? tiles.args.keys.row_idx(tiles.sequence, tiles.tile * kPrefillKeys + row)
                         : 0;
  cuda::BarrierWait(&pipeline->empty[cursor.stage], cursor.parity ^ 1);
  if (cuda::Lane() == 0) cuda::BarrierExpect(&pipeline->full[cursor.stage], 2 * kNarrowTile);
  cuda::SyncWarp();
  if (row < kPrefillKeys) {
    std::byte* const to = layout.narrow(cursor.stage) + row * 128;
    const auto head = static_cast<std::int32_t>(tiles.kv_head);
    cuda::TmaLoad3D(to, keys, &pipeline->full[cursor.stage], 0, head,
                    static_cast<std::int32_t>(from), cuda::L2Hint::kEvictLast);
    cuda::TmaLoad3D(to + kNarrowTile, values, &pipeline->full[cursor.stage], 0, head,
                    static_cast<std::int32_t>(from), cuda::L2Hint::kEvictLast);
  }
}

template <typename T>
__device__ __forceinline__ KeyScales LoadScales(const BlockTiles<T>& tiles) {
  const TileArgs<T>& args = tiles.args;
  const std::uint32_t key = tiles.tile * kPrefillKeys + cuda::ThreadIndex();
  if (key >= tiles.keys_end) return {false, {0, 0}};
  return {true,
          {*args.keys.scales_block_paged_ptr(tiles.sequence, key, tiles.kv_head),
           *args.values.scales_block_paged_ptr(tiles.sequence, key, tiles.kv_head)}};
}

// Returns the byte offset of a 16-byte piece in 128 bytes of the thread's row, with the 128-byte
// swizzle. The eight threads of one access have different rows, so there are no bank conflicts.
__device__ __forceinline__ std::uint32_t PieceOfRow(std::uint32_t piece) {
  return ((piece ^ cuda::ThreadIndex()) & 7) * 16;
}

// Widens four pieces of 16 elements of a row of K or V and multiplies the elements by `scale`.
// Stores them in slab `slab` of 64 columns.
template <typename T>
__device__ __forceinline__ void WidenSlab(const std::byte* row, std::uint32_t slab, float scale,
                                          std::byte* to) {
  uint4 raw[4];
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    raw[i] = *reinterpret_cast<const uint4*>(row + PieceOfRow(4 * slab + i));
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const uint4 low{ScaledPair<T>(raw[i].x, 0, scale), ScaledPair<T>(raw[i].x, 2, scale),
                    ScaledPair<T>(raw[i].y, 0, scale), ScaledPair<T>(raw[i].y, 2, scale)};
    const uint4 high{ScaledPair<T>(raw[i].z, 0, scale), ScaledPair<T>(raw[i].z, 2, scale),
                     ScaledPair<T>(raw[i].w, 0, scale), ScaledPair<T>(raw[i].w, 2, scale)};
    *reinterpret_cast<uint4*>(to + PieceOfRow(2 * i)) = low;
    *reinterpret_cast<uint4*>(to + PieceOfRow(2 * i + 1)) = high;
  }
}

// Widens the thread's row of a tile of K or V. Rows after the last key are set to zero, because a
// page may contain another sequence's old bytes, and 0 x NaN is NaN.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void WidenRow(const std::byte* narrow, bool exists, float scale,
                                         std::byte* tile) {
  const std::uint32_t at = cuda::ThreadIndex() * 128;
  const uint4 zeros{0, 0, 0, 0};
#pragma unroll
  for (std::uint32_t slab = 0; slab < kColumns / 64; ++slab) {
    std::byte* const to = tile + slab * kPrefillSlab + at;
    if (exists) {
      WidenSlab<T>(narrow + at, slab, scale, to);
    } else {
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        *reinterpret_cast<uint4*>(to + PieceOfRow(i)) = zeros;
      }
    }
  }
}

// Runs the widening warpgroup. There are as many byte stages as bf16 stages, so one cursor serves
// both.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void Widen(const TileArgs<T>& args, const CUtensorMap* keys,
                                      const CUtensorMap* values,
                                      const PrefillLayout<T, kColumns>& layout) {
  using Shape = PrefillLayout<T, kColumns>;
  const bool is_loader = cuda::Warp() == 0;
  BlockTiles<T> next{args};
  bool has_next = next.Start(cuda::BlockX());
  if (!has_next) return;
  PrefillCursor load_cursor;
  PrefillCursor cursor;
  if (is_loader) LoadBytes<T, kColumns>(next, keys, values, layout, load_cursor);
  KeyScales next_scales = LoadScales(next);
  while (has_next) {
    const KeyScales scales = next_scales;
    has_next = next.Advance();
    load_cursor.Advance();
    if (has_next) {
      if (is_loader) LoadBytes<T, kColumns>(next, keys, values, layout, load_cursor);
      next_scales = LoadScales(next);
    }
    cuda::BarrierWait(&layout.narrow_pipeline()->full[cursor.stage], cursor.parity);
    // Not unrolled, so that K and V share instructions.
#pragma unroll 1
    for (std::uint32_t part = 0; part < 2; ++part) {
      PrefillPipeline* const pipeline = layout.key_pipeline() + part;
      cuda::BarrierWait(&pipeline->empty[cursor.stage], cursor.parity ^ 1);
      WidenRow<T, kColumns>(layout.narrow(cursor.stage) + part * Shape::kNarrowTile, scales.exists,
                            part == 0 ? scales.k_and_v[0] : scales.k_and_v[1],
                            layout.keys(cursor.stage) + part * (Shape::kValuesAt - Shape::kKeysAt));
      // wgmma reads through the async proxy.
      cuda::FenceAsyncShared();
      cuda::SyncWarp();
      if (cuda::Lane() == 0) cuda::BarrierArrive(&pipeline->full[cursor.stage]);
    }
    if (cuda::Lane() == 0) cuda::BarrierArrive(&layout.narrow_pipeline()->empty[cursor.stage]);
    cursor.Advance();
  }
}

template <typename T, std::uint32_t kColumns>
__global__ void __launch_bounds__(kPrefillThreadsSm90, 1)
    PrefillBytesKernelSm90(const __grid_constant__ TileArgs<T> args,
                           const __grid_constant__ CUtensorMap keys,
                           const __grid_constant__ CUtensorMap values, const float unit_log2) {
  const PrefillLayout<T, kColumns> layout{cuda::SharedMemory()};
  if (cuda::ThreadIndex() == 0) {
    layout.key_pipeline()->Init(kWidenWarps, kConsumerThreads / cuda::kWarpSize);
    layout.value_pipeline()->Init(kWidenWarps, kConsumerThreads / cuda::kWarpSize);
    layout.narrow_pipeline()->Init(1, kWidenWarps);
    cuda::BarrierInitFence();
    cuda::TmaPrefetchMap(&keys);
    cuda::TmaPrefetchMap(&values);
  }
  cuda::SyncBlock();
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t warp = cuda::Warp();
  if (warp < kWidenWarps) {
    cuda::LowerRegisters<56>();
    Widen<T, kColumns>(args, &keys, &values, layout);
  } else {
    cuda::RaiseRegisters<224>();
    Consume<T, kColumns>(args, layout, warp / 4 - 1, unit_log2);
  }
}

template <typename T, std::uint32_t kColumns>
absl::Status LaunchBytes(const CudaContext& context, const TileArgs<T>& args,
                         const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  return cuda::Launch(context, "attention prefill bytes sm_90a",
                      PrefillBytesKernelSm90<T, kColumns>,
                      {.blocks_x = blocks,
                       .threads = kPrefillThreadsSm90,
                       .shared_bytes = PrefillLayout<T, kColumns>::kBytes + cuda::kSharedAlignment,
                       .programmatic = true},
                      args, maps.keys.map(), maps.values.map(), UnitLog2(args));
}

template <typename T>
absl::Status LaunchColumns(const CudaContext& context, const TileArgs<T>& args,
                           const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  if (args.keys.head_size() <= 64) return LaunchBytes<T, 64>(context, args, maps, blocks);
  return LaunchBytes<T, 128>(context, args, maps, blocks);
}

}  // namespace

template <>
absl::Status LaunchPrefillSm90<F8E4M3>(const CudaContext& context, const TileArgs<F8E4M3>& args,
                                       const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  return LaunchColumns(context, args, maps, blocks);
}
template <>
absl::Status LaunchPrefillSm90<std::int8_t>(const CudaContext& context,
                                            const TileArgs<std::int8_t>& args,
                                            const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  return LaunchColumns(context, args, maps, blocks);
}

}  // namespace quire::kernels::attention
