// Decode over bf16 pages on compute capability 9.0. The arithmetic is that of attention_decode.cuh
// and the results are bitwise equal, but K and V are loaded by TMA. Four warps are consumers. The
// fifth warp is the producer. It continues with the next item while the consumers finish the
// current one, so that the pipeline does not drain between items. See README.md.

#include <cuda.h>

#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/attention_launch_sm90.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kThreads = kDecodeThreads + cuda::kWarpSize;
constexpr std::uint32_t kConsumerBarrier = 1;

// The pipeline stages and their barriers. Shared memory contains the stages, then the barriers,
// then a flag that the consumers use (RecordPartial).
template <std::uint32_t kColumns>
struct Pipeline {
  using Tile = TileShape<BF16, kColumns>;
  static constexpr std::uint32_t kSlabs = Tile::kRowBytes / 128;  // slabs of 64 columns of K or V
  static constexpr std::uint32_t kSlabBytes = kKvTile * 128;
  static constexpr std::uint32_t kStages = DecodeShape<BF16, kColumns>::kStages;
  static constexpr std::uint32_t kStageBytes = DecodeShape<BF16, kColumns>::kStageBytes;
  using Barriers = cuda::PipelineBarriers<kStages>;
  static constexpr std::uint32_t kFlagAt = kStages * kStageBytes + sizeof(Barriers);
  static constexpr std::uint32_t kBytes = kFlagAt + 16;
  static_assert(kStageBytes == 2 * kSlabs * kSlabBytes);

  std::byte* shared;
  cuda::PipelineCursor<kStages> cursor{};

  __device__ __forceinline__ std::byte* stage() const {
    return shared + cursor.stage * kStageBytes;
  }
  __device__ __forceinline__ Barriers* barriers() const {
    return reinterpret_cast<Barriers*>(shared + kStages * kStageBytes);
  }
  __device__ __forceinline__ cuda::Barrier* full() const { return &barriers()->full[cursor.stage]; }
  __device__ __forceinline__ cuda::Barrier* empty() const {
    return &barriers()->empty[cursor.stage];
  }
};

// Runs the producer warp. Each lane loads at most one box of a tile. The first half of the boxes
// loads K, the second half V.
template <std::uint32_t kColumns>
__device__ __forceinline__ void Produce(const TileArgs<BF16>& args, const CUtensorMap* keys,
                                        const CUtensorMap* values, Pipeline<kColumns> pipeline) {
  using Shape = Pipeline<kColumns>;
  const std::uint32_t page = args.keys.page_size();
  const std::uint32_t box_rows = page < kKvTile ? page : kKvTile;
  const std::uint32_t boxes = kKvTile / box_rows;
  const std::uint32_t slab = cuda::Lane() / boxes;  // slabs of K, then of V
  const std::uint32_t row = cuda::Lane() % boxes * box_rows;
  const CUtensorMap* const map = slab < Shape::kSlabs ? keys : values;
  const std::uint32_t column = slab % Shape::kSlabs * 64;
  const std::uint32_t count = args.lists.counts->decode;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    const AttentionWork item = args.lists.decode[i];
    const ItemRows<BF16> rows(args, item);
    const TileRange range = TilesOf(rows, rows.KeysEnd());
    for (std::uint32_t tile = range.first; tile < range.end; ++tile) {
      const std::uint32_t from = args.keys.row_idx(item.sequence, tile * kKvTile + row);
      cuda::BarrierWait(pipeline.empty(), pipeline.cursor.parity ^ 1);
      if (cuda::Lane() == 0) cuda::BarrierExpect(pipeline.full(), Shape::kStageBytes);
      cuda::SyncWarp();
      if (slab < 2 * Shape::kSlabs) {
        cuda::TmaLoad3D(pipeline.stage() + slab * Shape::kSlabBytes + row * 128, map,
                        pipeline.full(), static_cast<std::int32_t>(column),
                        static_cast<std::int32_t>(item.kv_head), static_cast<std::int32_t>(from),
                        cuda::L2Hint::kEvictFirst);
      }
      pipeline.cursor.Advance();
    }
  }
}

// Zeroes V of the warp's tokens from token `valid` of the tile on. A page may contain another
// sequence's old bytes, and 0 x NaN is NaN. K of these tokens need not be zeroed, because their
// scores are masked.
template <std::uint32_t kColumns>
__device__ __forceinline__ void ClearTail(std::byte* stage, std::uint32_t valid) {
  using Shape = Pipeline<kColumns>;
  const std::uint32_t end = (cuda::Warp() + 1) * 16;
  const std::uint32_t begin = valid > end - 16 ? valid : end - 16;
#pragma unroll
  for (std::uint32_t slab = 0; slab < Shape::kSlabs; ++slab) {
    std::byte* const to = stage + (Shape::kSlabs + slab) * Shape::kSlabBytes;
    for (std::uint32_t i = begin * 8 + cuda::Lane(); i < end * 8; i += cuda::kWarpSize) {
      *reinterpret_cast<uint4*>(to + i * 16) = uint4{0, 0, 0, 0};
    }
  }
  cuda::FenceAsyncShared();
  cuda::SyncWarp();
}

// Processes an item in the consumer warps.
template <std::uint32_t kColumns>
__device__ __forceinline__ void ConsumeItem(const TileArgs<BF16>& args, const AttentionWork& item,
                                            Pipeline<kColumns>* pipeline) {
  using Shape = Pipeline<kColumns>;
  const ItemRows<BF16> rows(args, item);
  const std::uint32_t keys_end = rows.KeysEnd();
  const TileRange range = TilesOf(rows, keys_end);
  DecodeWarp<BF16, kColumns> warp;
  warp.LoadQueries(rows);
  warp.Clear();
  RowReduction<kColumns> reduce;
  reduce.Clear();
  for (std::uint32_t tile = range.first; tile < range.end; ++tile) {
    std::byte* const current = pipeline->stage();
    cuda::BarrierWait(pipeline->full(), pipeline->cursor.parity);
    const std::uint32_t valid = keys_end - tile * kKvTile;
    if (valid < (cuda::Warp() + 1) * 16) ClearTail<kColumns>(current, valid);
    warp.Tile64(current, tile, args.scale_log2, args.rules);
    if (tile % kTilesPerSpan == kTilesPerSpan - 1 || tile + 1 == range.end) {
      auto* const scratch = reinterpret_cast<float*>(current);
      cuda::NamedSync(kConsumerBarrier, kDecodeThreads);  // no thread reads the tile any longer
      warp.StoreState(scratch);
      cuda::FenceAsyncShared();
      cuda::NamedSync(kConsumerBarrier, kDecodeThreads);
      ReduceSpan<BF16, kColumns>(scratch, &reduce);
      warp.Clear();
      if (tile / kTilesPerSpan % kSpansPerGroup == kSpansPerGroup - 1 || tile + 1 == range.end) {
        reduce.EndGroup();
      }
    }
    cuda::SyncWarp();
    if (cuda::Lane() == 0) cuda::BarrierArrive(pipeline->empty());
    pipeline->cursor.Advance();
  }
  FinishItem<BF16, kColumns>(rows, reduce,
                             reinterpret_cast<std::uint32_t*>(pipeline->shared + Shape::kFlagAt),
                             [] { cuda::NamedSync(kConsumerBarrier, kDecodeThreads); });
}

template <std::uint32_t kColumns>
__global__ void __launch_bounds__(kThreads, 2)
    DecodeKernelSm90(const __grid_constant__ TileArgs<BF16> args,
                     const __grid_constant__ CUtensorMap keys,
                     const __grid_constant__ CUtensorMap values) {
  Pipeline<kColumns> pipeline{cuda::SharedMemory()};
  if (cuda::ThreadIndex() == 0) {
    pipeline.barriers()->Init(1, kDecodeWarps);
    cuda::BarrierInitFence();
    cuda::TmaPrefetchMap(&keys);
    cuda::TmaPrefetchMap(&values);
  }
  cuda::SyncBlock();
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  if (cuda::Warp() == kDecodeWarps) {
    Produce<kColumns>(args, &keys, &values, pipeline);
    return;
  }
  const std::uint32_t count = args.lists.counts->decode;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    ConsumeItem<kColumns>(args, args.lists.decode[i], &pipeline);
  }
}

template <std::uint32_t kColumns>
absl::Status Launch(const CudaContext& context, const TileArgs<BF16>& args,
                    const cuda::KvLayerMaps& maps, std::uint32_t max_blocks) {
  constexpr char kName[] = "attention decode sm_90a";
  cuda::LaunchShape shape{.threads = kThreads,
                          .shared_bytes = Pipeline<kColumns>::kBytes + cuda::kSharedAlignment,
                          .programmatic = true};
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t blocks_per_sm,
                         cuda::MaxBlocksPerSm(context, kName, DecodeKernelSm90<kColumns>, shape));
  shape.blocks_x = std::min(max_blocks, blocks_per_sm * context.num_sms);
  return cuda::Launch(context, kName, DecodeKernelSm90<kColumns>, shape, args, maps.keys.map(),
                      maps.values.map());
}

}  // namespace

absl::Status LaunchDecodeSm90(const CudaContext& context, const TileArgs<BF16>& args,
                              const cuda::KvLayerMaps& maps, std::uint32_t max_blocks) {
  if (args.keys.head_size() <= 64) return Launch<64>(context, args, maps, max_blocks);
  if (args.keys.head_size() <= 96) return Launch<96>(context, args, maps, max_blocks);
  return Launch<128>(context, args, maps, max_blocks);
}

}  // namespace quire::kernels::attention
