#pragma once

// Code shared by the prefill kernels of compute capability 9.0: shared memory, pipelines and the
// two consumer warpgroups with 64 packed rows each. The kernels differ in how tiles of K and V are
// loaded. See README.md.
//
// Both operands of S = Q K^T are in shared memory. P of P V is in registers. K and V have separate
// pipelines. Tiles of 128 keys at absolute multiples of 128 are processed in descending order, from
// the last tile that any row of the item sees to the first. A tile that a row does not see leaves
// the row's state unchanged. The bits of a row therefore do not depend on prompt chunking or on
// other rows of the item. With a window or chunk, tiles before the first visible key are skipped
// and the lowest tiles are masked. A soft cap is a separate pass over the scores in a uniform
// branch. A sink is added to the sum when a row is written.
//
// Warp roles, separate K and V stages, the overlap of S(n) with P V(n + 1) and the alternation of
// the two warpgroups are from FlashAttention-3. Packed rows are from FlashInfer.

#include <cuda.h>

#include "kernels/attention/attention_launch_sm90.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace quire::kernels::attention {

inline constexpr std::uint32_t kWarpgroupThreads = 128;
inline constexpr std::uint32_t kPrefillGroups = 2;  // number of consumer warpgroups
inline constexpr std::uint32_t kConsumerThreads = kPrefillGroups * kWarpgroupThreads;
inline constexpr std::uint32_t kPrefillThreadsSm90 = kWarpgroupThreads + kConsumerThreads;
inline constexpr std::uint32_t kPrefillGroupRows = 64;
inline constexpr std::uint32_t kPrefillKeys = 128;  // keys per tile
inline constexpr std::uint32_t kPrefillStages = 2;
inline constexpr std::uint32_t kPrefillSlab = kPrefillKeys * 128;  // bytes of 64 columns of a tile
static_assert(kPrefillGroups * kPrefillGroupRows == kPrefillRows);

using PrefillPipeline = cuda::PipelineBarriers<kPrefillStages>;
using PrefillCursor = cuda::PipelineCursor<kPrefillStages>;

// Shared memory contains the queries of each consumer warpgroup (reused for the output), the stages
// of K and V, and the pipelines of K and V. For one-byte pages it also contains two stages of bytes
// and their pipeline.
template <typename T, std::uint32_t kColumns>
struct PrefillLayout {
  static constexpr bool kWidened = kQuantizedKv<T>;
  static constexpr std::uint32_t kSlabs = kColumns / 64;
  static constexpr std::uint32_t kQuerySlab = kPrefillGroupRows * 128;
  static constexpr std::uint32_t kGroupBytes = kSlabs * kQuerySlab;
  static constexpr std::uint32_t kTileBytes = kSlabs * kPrefillSlab;
  static constexpr std::uint32_t kNarrowTile =
      kPrefillKeys * 128;  // 128 one-byte columns of K or V
  static constexpr std::uint32_t kKeysAt = kPrefillGroups * kGroupBytes;
  static constexpr std::uint32_t kValuesAt = kKeysAt + kPrefillStages * kTileBytes;
  static constexpr std::uint32_t kNarrowAt = kValuesAt + kPrefillStages * kTileBytes;
  static constexpr std::uint32_t kPipelinesAt =
      kNarrowAt + (kWidened ? 2 * kPrefillStages * kNarrowTile : 0);
  static constexpr std::uint32_t kBytes =
      kPipelinesAt + (kWidened ? 3 : 2) * sizeof(PrefillPipeline);
  static_assert(kBytes + cuda::kSharedAlignment <= 227 * 1024);

  std::byte* shared;

  __device__ __forceinline__ std::byte* queries(std::uint32_t group) const {
    return shared + group * kGroupBytes;
  }
  __device__ __forceinline__ std::byte* keys(std::uint32_t stage) const {
    return shared + kKeysAt + stage * kTileBytes;
  }
  __device__ __forceinline__ std::byte* values(std::uint32_t stage) const {
    return shared + kValuesAt + stage * kTileBytes;
  }
  // Returns the one-byte elements of K in a stage. The elements of V follow.
  __device__ __forceinline__ std::byte* narrow(std::uint32_t stage) const {
    return shared + kNarrowAt + stage * 2 * kNarrowTile;
  }
  __device__ __forceinline__ PrefillPipeline* key_pipeline() const {
    return reinterpret_cast<PrefillPipeline*>(shared + kPipelinesAt);
  }
  __device__ __forceinline__ PrefillPipeline* value_pipeline() const { return key_pipeline() + 1; }
  __device__ __forceinline__ PrefillPipeline* narrow_pipeline() const { return key_pipeline() + 2; }
};

__device__ __forceinline__ std::uint32_t TilesUpTo(std::uint32_t keys_end) {
  return (keys_end + kPrefillKeys - 1) / kPrefillKeys;
}

// Returns the first tile that a row of the item sees.
template <typename T>
__device__ __forceinline__ std::uint32_t FirstTile(const ItemRows<T>& rows) {
  static_assert(kPrefillKeys % kKvTile == 0);
  return rows.FirstTile() / (kPrefillKeys / kKvTile);
}

// State of one thread of a consumer warpgroup, for rows lane / 4 and lane / 4 + 8 of the 16 rows of
// its warp.
template <typename T, std::uint32_t kColumns>
struct PrefillConsumer {
  static constexpr int kScores = kPrefillKeys / 2;
  using Shape = PrefillLayout<T, kColumns>;
  // Named barriers: kGroupBarrier + g synchronizes group g, kBothBarrier synchronizes both groups.
  // Group g waits at kTurnBarrier + g until it may issue its wgmmas.
  static constexpr std::uint32_t kGroupBarrier = 1;
  static constexpr std::uint32_t kBothBarrier = 3;
  static constexpr std::uint32_t kTurnBarrier = 4;

  const Shape layout;
  const std::uint32_t group;   // 0 or 1
  const std::uint32_t thread;  // index in the group
  const float scale_log2;
  const ScoreRules rules;
  // Factor of s in the exponent of Softmax: scale_log2, or cap_log2 with a soft cap.
  const float unit_log2;
  PrefillCursor key_cursor;
  PrefillCursor value_cursor;
  std::uint32_t position[2];
  float max[2];
  float sum[2];  // partial sum of this lane
  float rescale[2];
  float s[kScores];
  float o[kColumns / 2];
  std::uint32_t p[kPrefillKeys / 16][4];

  __device__ __forceinline__ PrefillConsumer(const Shape& shared, std::uint32_t index,
                                             const TileArgs<T>& args, float unit)
      : layout(shared),
        group(index),
        thread(cuda::ThreadIndex() % kWarpgroupThreads),
        scale_log2(args.scale_log2),
        rules(args.rules),
        unit_log2(unit) {}

  __device__ __forceinline__ void SyncGroup() const {
    cuda::NamedSync(kGroupBarrier + group, kWarpgroupThreads);
  }
  __device__ __forceinline__ void Release(cuda::Barrier* empty) const {
    if (cuda::Lane() == 0) cuda::BarrierArrive(empty);
  }
  // Returns the byte offset of a 16-byte piece of a row, with 64 columns per slab, in the layout
  // that wgmma reads.
  static __device__ __forceinline__ std::uint32_t Piece(std::uint32_t row, std::uint32_t piece) {
    return piece / 8 * Shape::kQuerySlab + row * 128 + ((piece ^ row) & 7) * 16;
  }

  // Copies queries to shared memory. Rows and columns that do not exist are zero-filled.
  __device__ __forceinline__ void Start(const ItemRows<T>& rows) {
    std::byte* const to = layout.queries(group);
    constexpr std::uint32_t kPieces = kColumns / 8;
    SyncGroup();  // waits until the previous item's staged output is written
#pragma unroll
    for (std::uint32_t j = 0; j < kPrefillGroupRows * kPieces / kWarpgroupThreads; ++j) {
      const std::uint32_t i = thread + j * kWarpgroupThreads;
      const std::uint32_t row = group * kPrefillGroupRows + i / kPieces;
      const std::uint32_t column = i % kPieces * 8;
      uint4 q{0, 0, 0, 0};
      if (row < rows.item.num_rows && column < rows.args.keys.head_size()) {
        q = *reinterpret_cast<const uint4*>(rows.args.q + rows.Offset(row, rows.args.q_stride) +
                                            column);
      }
      *reinterpret_cast<uint4*>(to + Piece(i / kPieces, i % kPieces)) = q;
    }
    cuda::FenceAsyncShared();
    SyncGroup();
    const std::uint32_t row =
        group * kPrefillGroupRows + thread / cuda::kWarpSize * 16 + cuda::Lane() / 4;
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      position[half] = rows.Position(row + 8 * half);
      max[half] = kNoScore;
      sum[half] = 0;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kColumns / 2; ++i) o[i] = 0;
  }

  // Starts s = Q K^T for the next tile.
  __device__ __forceinline__ void IssueScores() {
    const std::uint64_t a =
        cuda::WgmmaDescriptor(layout.queries(group), 0, 1024, cuda::SharedSwizzle::k128B);
    const std::uint64_t b =
        cuda::WgmmaDescriptor(layout.keys(key_cursor.stage), 0, 1024, cuda::SharedSwizzle::k128B);
#pragma unroll
    for (std::uint32_t k = 0; k < kColumns / 16; ++k) {
      const std::uint32_t in_row = k % 4 * 32;
      cuda::WgmmaShared<kPrefillKeys>(s, a + (k / 4 * Shape::kQuerySlab + in_row) / 16,
                                      b + (k / 4 * kPrefillSlab + in_row) / 16, k > 0);
    }
    cuda::WgmmaCommit();
  }
  // Starts o += P V for the next tile.
  __device__ __forceinline__ void IssueValues() {
    const std::uint64_t b = cuda::WgmmaDescriptor(layout.values(value_cursor.stage), kPrefillSlab,
                                                  1024, cuda::SharedSwizzle::k128B);
#pragma unroll
    for (std::uint32_t k = 0; k < kPrefillKeys / 16; ++k) {
      cuda::WgmmaRegisters<kColumns, 1>(o, p[k], b + k * (16 * 128) / 16, true);
    }
    cuda::WgmmaCommit();
  }
  __device__ __forceinline__ void PinProbabilities() {
#pragma unroll
    for (std::uint32_t k = 0; k < kPrefillKeys / 16; ++k) cuda::WgmmaPin(p[k]);
  }
  __device__ __forceinline__ void ReleaseKeys() {
    Release(&layout.key_pipeline()->empty[key_cursor.stage]);
    key_cursor.Advance();
  }
  __device__ __forceinline__ void ReleaseValues() {
    Release(&layout.value_pipeline()->empty[value_cursor.stage]);
    value_cursor.Advance();
  }

  // Converts products q . k to capped scores divided by the cap.
  __device__ __forceinline__ void Cap() {
#pragma unroll
    for (std::uint32_t i = 0; i < kScores; ++i) {
      s[i] = TanhApprox(cuda::Mul(s[i], scale_log2));
    }
  }
  __device__ __forceinline__ void Mask(std::uint32_t first_key) {
    const VisibleKeys visible[2] = {rules.Visible(position[0]), rules.Visible(position[1])};
#pragma unroll
    for (std::uint32_t i = 0; i < kScores; ++i) {
      const std::uint32_t key = first_key + i / 4 * 8 + 2 * (cuda::Lane() % 4) + i % 2;
      if (!visible[i / 2 % 2].Has(key)) s[i] = kNoScore;
    }
  }

  // Converts the scores of the tile at `first_key` to weights in place. Masked and unmasked tiles
  // use the same arithmetic. A mask only replaces scores.
  template <bool kMasked>
  __device__ __forceinline__ void Softmax(std::uint32_t first_key) {
    if (rules.cap_log2 > 0) Cap();
    if constexpr (kMasked) Mask(first_key);
    float largest[2] = {kNoScore, kNoScore};
#pragma unroll
    for (std::uint32_t i = 0; i < kScores; ++i) {
      largest[i / 2 % 2] = cuda::Max(largest[i / 2 % 2], s[i]);
    }
    float base[2];
    float total[2] = {0, 0};
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      float row = largest[half];
      row = cuda::Max(row, cuda::ShuffleXor(row, 1));
      row = cuda::Max(row, cuda::ShuffleXor(row, 2));
      const float before = max[half];
      max[half] = cuda::Max(before, cuda::Mul(row, unit_log2));
      base[half] = ScoreBase<DeviceMath>(max[half]);
      rescale[half] = cuda::Exp2Approx(cuda::Sub(before, base[half]));
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kScores; ++i) {
      const std::uint32_t half = i / 2 % 2;
      s[i] = cuda::Exp2Approx(cuda::Fma(s[i], unit_log2, -base[half]));
      total[half] = cuda::Add(total[half], s[i]);
    }
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      sum[half] = cuda::Fma(sum[half], rescale[half], total[half]);
    }
  }
  // Packs s into p: the accumulator layout of s is the A layout of p.
  __device__ __forceinline__ void Convert() {
#pragma unroll
    for (std::uint32_t k = 0; k < kPrefillKeys / 16; ++k) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) {
        p[k][j] = cuda::PackBF16(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
      }
    }
  }
  __device__ __forceinline__ void Rescale() {
#pragma unroll
    for (std::uint32_t i = 0; i < kColumns / 2; ++i) o[i] = cuda::Mul(o[i], rescale[i / 2 % 2]);
  }

  // Computes scores and weights of the tile with the last keys, which is processed first. V rows
  // from keys_end on are set to zero, because a page may contain another sequence's old bytes, and
  // 0 x NaN is NaN. In widened tiles these rows are already zero.
  __device__ __forceinline__ void ProcessFirst(std::uint32_t first_key, std::uint32_t keys_end) {
    cuda::BarrierWait(&layout.key_pipeline()->full[key_cursor.stage], key_cursor.parity);
    cuda::WgmmaPin(s);
    cuda::WgmmaFence();
    IssueScores();
    const std::uint32_t valid = keys_end - first_key;
    if (!Shape::kWidened && valid < kPrefillKeys) {
      cuda::BarrierWait(&layout.value_pipeline()->full[value_cursor.stage], value_cursor.parity);
#pragma unroll
      for (std::uint32_t slab = 0; slab < Shape::kSlabs; ++slab) {
        std::byte* const to = layout.values(value_cursor.stage) + slab * kPrefillSlab;
        for (std::uint32_t i = valid * 8 + group * kWarpgroupThreads + thread; i < kPrefillKeys * 8;
             i += kConsumerThreads) {
          *reinterpret_cast<uint4*>(to + i * 16) = uint4{0, 0, 0, 0};
        }
      }
      cuda::FenceAsyncShared();
      cuda::NamedSync(kBothBarrier, kConsumerThreads);
    }
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(s);
    ReleaseKeys();
    Softmax<true>(first_key);
    Convert();
  }
  // Computes scores and weights of the tile at first_key while the values of the preceding tile are
  // added.
  template <bool kMasked>
  __device__ __forceinline__ void ProcessNext(std::uint32_t first_key) {
    cuda::BarrierWait(&layout.key_pipeline()->full[key_cursor.stage], key_cursor.parity);
    cuda::BarrierWait(&layout.value_pipeline()->full[value_cursor.stage], value_cursor.parity);
    cuda::NamedSync(kTurnBarrier + group, kConsumerThreads);
    cuda::WgmmaPin(s);
    cuda::WgmmaPin(o);
    PinProbabilities();
    cuda::WgmmaFence();
    IssueScores();
    IssueValues();
    cuda::NamedArrive(kTurnBarrier + (group ^ 1), kConsumerThreads);
    cuda::WgmmaWait<1>();
    cuda::WgmmaPin(s);
    ReleaseKeys();
    Softmax<kMasked>(first_key);
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(o);
    PinProbabilities();
    ReleaseValues();
    Rescale();
    Convert();
  }
  __device__ __forceinline__ void AddLastValues() {
    cuda::BarrierWait(&layout.value_pipeline()->full[value_cursor.stage], value_cursor.parity);
    cuda::WgmmaPin(o);
    PinProbabilities();
    cuda::WgmmaFence();
    IssueValues();
    cuda::WgmmaWait<0>();
    cuda::WgmmaPin(o);
    ReleaseValues();
  }

  // Writes the output. Stages it in the memory of the queries first, so that rows are written in
  // 16-byte pieces.
  __device__ __forceinline__ void Write(const ItemRows<T>& rows) {
    std::byte* const staged = layout.queries(group);
    const std::uint32_t first = thread / cuda::kWarpSize * 16;
    SyncGroup();  // no thread multiplies these queries any longer
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      float total = cuda::Add(sum[half], cuda::ShuffleXor(sum[half], 1));
      total = cuda::Add(total, cuda::ShuffleXor(total, 2));
      const std::uint32_t row = first + cuda::Lane() / 4 + 8 * half;
      total = AddSink({max[half], total}, rows.Sink(group * kPrefillGroupRows + row)).sum;
      const float share = total > 0 ? cuda::ReciprocalApprox(total) : 0.0f;
#pragma unroll
      for (std::uint32_t i = 0; i < kColumns / 8; ++i) {
        *reinterpret_cast<std::uint32_t*>(staged + Piece(row, i) + cuda::Lane() % 4 * 4) =
            cuda::PackBF16(cuda::Mul(o[4 * i + 2 * half], share),
                           cuda::Mul(o[4 * i + 2 * half + 1], share));
      }
    }
    cuda::SyncWarp();
    constexpr std::uint32_t kPieces = kColumns / 8;
#pragma unroll
    for (std::uint32_t j = 0; j < 16 * kPieces / cuda::kWarpSize; ++j) {
      const std::uint32_t i = cuda::Lane() + j * cuda::kWarpSize;
      const std::uint32_t row = first + i / kPieces;
      const std::uint32_t column = i % kPieces * 8;
      const std::uint32_t item_row = group * kPrefillGroupRows + row;
      if (item_row >= rows.item.num_rows || column >= rows.args.keys.head_size()) continue;
      *reinterpret_cast<uint4*>(rows.args.out + rows.Offset(item_row, rows.args.out_stride) +
                                column) =
          *reinterpret_cast<const uint4*>(staged + Piece(row, i % kPieces));
    }
  }

  __device__ __forceinline__ void Item(const TileArgs<T>& args, const AttentionWork& item) {
    const ItemRows<T> rows(args, item);
    Start(rows);
    const std::uint32_t keys_end = rows.KeysEnd();
    const std::uint32_t first = FirstTile(rows);
    // Tiles from `whole` on need no window or chunk mask. Tiles before `whole_end` need no causal
    // mask.
    const std::uint32_t whole = TilesUpTo(rules.First(keys_end - 1));
    const std::uint32_t whole_end = (rows.Position(0) + 1) / kPrefillKeys;
    std::uint32_t n = TilesUpTo(keys_end) - 1;
    ProcessFirst(n * kPrefillKeys, keys_end);
    while (n > first) {
      if (n > whole_end || n <= whole) {
        ProcessNext<true>(--n * kPrefillKeys);
      } else {
        for (; n > whole; --n) ProcessNext<false>((n - 1) * kPrefillKeys);
      }
    }
    AddLastValues();
    Write(rows);
  }
};

// Processes all items of a consumer warpgroup.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void Consume(const TileArgs<T>& args,
                                        const PrefillLayout<T, kColumns>& layout,
                                        std::uint32_t group, float unit_log2) {
  using Consumer = PrefillConsumer<T, kColumns>;
  Consumer consumer(layout, group, args, unit_log2);
  const std::uint32_t count = args.lists.counts->prefill;
  // No code may follow the loop. Otherwise ptxas would limit the registers of the whole loop to
  // those that the launch allocates.
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    // Lets group 0 issue its wgmmas first. After its last item, group 0 consumes the last arrival
    // of group 1.
    if (group == 1 && i < cuda::GridX()) {
      cuda::NamedArrive(Consumer::kTurnBarrier, kConsumerThreads);
    }
    consumer.Item(args, args.lists.prefill[i]);
    if (group == 0 && i + cuda::GridX() >= count) {
      cuda::NamedSync(Consumer::kTurnBarrier, kConsumerThreads);
    }
  }
}

// Returns the value of PrefillConsumer::unit_log2.
template <typename T>
float UnitLog2(const TileArgs<T>& args) {
  return args.rules.cap_log2 > 0 ? args.rules.cap_log2 : args.scale_log2;
}

}  // namespace quire::kernels::attention
