// Prefill over bf16 pages on compute capability 9.0: 128 packed rows of one KV head attend to all
// keys that they see. K and V are loaded by TMA, and products use wgmma. See README.md.
//
// One warpgroup is the producer. One of its warps issues a TMA box for each page and 128-byte slab.
// attention_prefill_sm90.cuh defines the two consumer warpgroups.

#include "kernels/attention/attention_prefill_sm90.cuh"

namespace quire::kernels::attention {
namespace {

// Loads one tile with the lanes of the producer warp: lane l issues box l % boxes of slab l /
// boxes.
template <std::uint32_t kColumns>
__device__ __forceinline__ void IssueTile(const TileArgs<BF16>& args, const AttentionWork& item,
                                          const CUtensorMap* map, std::uint32_t first_key,
                                          PrefillPipeline* pipeline, const PrefillCursor& cursor,
                                          std::byte* tile) {
  const std::uint32_t page = args.keys.page_size();
  const std::uint32_t box_rows = page < kKvTile ? page : kKvTile;
  const std::uint32_t boxes = kPrefillKeys / box_rows;
  const std::uint32_t slab = cuda::Lane() / boxes;
  const std::uint32_t row = cuda::Lane() % boxes * box_rows;
  // Read before the wait, so that the wait hides the latency of the table lookup.
  const std::uint32_t from = args.keys.row_idx(item.sequence, first_key + row);
  cuda::BarrierWait(&pipeline->empty[cursor.stage], cursor.parity ^ 1);
  if (cuda::Lane() == 0) {
    cuda::BarrierExpect(&pipeline->full[cursor.stage], PrefillLayout<BF16, kColumns>::kTileBytes);
  }
  cuda::SyncWarp();
  if (slab < PrefillLayout<BF16, kColumns>::kSlabs) {
    cuda::TmaLoad3D(tile + slab * kPrefillSlab + row * 128, map, &pipeline->full[cursor.stage],
                    static_cast<std::int32_t>(slab * 64), static_cast<std::int32_t>(item.kv_head),
                    static_cast<std::int32_t>(from), cuda::L2Hint::kEvictLast);
  }
}

template <std::uint32_t kColumns>
__device__ __forceinline__ void Produce(const TileArgs<BF16>& args, const CUtensorMap* keys,
                                        const CUtensorMap* values,
                                        const PrefillLayout<BF16, kColumns>& layout) {
  PrefillCursor cursor;
  const std::uint32_t count = args.lists.counts->prefill;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    const AttentionWork item = args.lists.prefill[i];
    const ItemRows<BF16> rows(args, item);
    const std::uint32_t first = FirstTile(rows);
    for (std::uint32_t n = TilesUpTo(rows.KeysEnd()); n-- > first;) {
      IssueTile<kColumns>(args, item, keys, n * kPrefillKeys, layout.key_pipeline(), cursor,
                          layout.keys(cursor.stage));
      IssueTile<kColumns>(args, item, values, n * kPrefillKeys, layout.value_pipeline(), cursor,
                          layout.values(cursor.stage));
      cursor.Advance();
    }
  }
}

template <std::uint32_t kColumns>
__global__ void __launch_bounds__(kPrefillThreadsSm90, 1)
    PrefillKernelSm90(const __grid_constant__ TileArgs<BF16> args,
                      const __grid_constant__ CUtensorMap keys,
                      const __grid_constant__ CUtensorMap values, const float unit_log2) {
  const PrefillLayout<BF16, kColumns> layout{cuda::SharedMemory()};
  if (cuda::ThreadIndex() == 0) {
    layout.key_pipeline()->Init(1, kConsumerThreads / cuda::kWarpSize);
    layout.value_pipeline()->Init(1, kConsumerThreads / cuda::kWarpSize);
    cuda::BarrierInitFence();
    cuda::TmaPrefetchMap(&keys);
    cuda::TmaPrefetchMap(&values);
  }
  cuda::SyncBlock();
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t warp = cuda::Warp();
  if (warp < 4) {
    cuda::LowerRegisters<40>();
    if (warp == 0) Produce<kColumns>(args, &keys, &values, layout);
  } else {
    cuda::RaiseRegisters<232>();
    Consume<BF16, kColumns>(args, layout, warp / 4 - 1, unit_log2);
  }
}

template <std::uint32_t kColumns>
absl::Status Launch(const CudaContext& context, const TileArgs<BF16>& args,
                    const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  return cuda::Launch(
      context, "attention prefill sm_90a", PrefillKernelSm90<kColumns>,
      {.blocks_x = blocks,
       .threads = kPrefillThreadsSm90,
       .shared_bytes = PrefillLayout<BF16, kColumns>::kBytes + cuda::kSharedAlignment,
       .programmatic = true},
      args, maps.keys.map(), maps.values.map(), UnitLog2(args));
}

}  // namespace

template <>
absl::Status LaunchPrefillSm90<BF16>(const CudaContext& context, const TileArgs<BF16>& args,
                                     const cuda::KvLayerMaps& maps, std::uint32_t blocks) {
  if (args.keys.head_size() <= 64) return Launch<64>(context, args, maps, blocks);
  return Launch<128>(context, args, maps, blocks);
}

}  // namespace quire::kernels::attention
