#pragma once

// Prefill: 128 packed rows of one KV head attend to all keys that they see. See README.md.
//
// Each of eight warps processes 16 rows. Queries and output stay in registers. The scores have the
// accumulator layout of m16n8k16. After conversion to 16 bits, this is the layout of operand A of
// the product P V. Tiles of 64 tokens start at absolute multiples of 64. They are processed in
// ascending order, from the first to the last key that any row of the item sees. A tile that a row
// does not see leaves the row's state unchanged. The bits of a row therefore do not depend on
// prompt chunking or on other rows of the item.
//
// bf16 pages are loaded by cp.async, kStages - 1 tiles ahead. One-byte pages are loaded through
// registers. Each element is multiplied by its scale, rounded to bf16 and stored in a bf16 tile.
// Loading one-byte pages does not overlap with arithmetic.
//
// The loop is from FlashAttention-2. Packing a group's heads into rows is from FlashInfer.

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {

inline constexpr std::uint32_t kPrefillThreads = 256;

template <typename T, std::uint32_t kColumns>
struct PrefillShape {
  static constexpr bool kConverted = kQuantizedKv<T>;
  using Tile = TileShape<BF16, kColumns>;
  static constexpr std::uint32_t kStageBytes = 2 * Tile::kBytes;
  static constexpr std::uint32_t kStages = kConverted ? 1 : 3;
  static constexpr std::uint32_t kSharedBytes = kStages * kStageBytes;
  static_assert(kPrefillThreads / cuda::kWarpSize * 16 == kPrefillRows);
};

// Converts a piece of 16 elements of a page to bf16 and stores them in a tile. Stores zeros if
// `valid` is false.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void ConvertPiece(const KvView<T>& view, const AttentionWork& item,
                                             std::uint32_t token, std::uint32_t column, bool valid,
                                             std::byte* tile) {
  using Tile = typename PrefillShape<T, kColumns>::Tile;
  uint4 raw{0, 0, 0, 0};
  float scale = 0;
  if (valid) {
    const T* const from =
        view.template block_paged_ptr<1>(item.sequence, token, item.kv_head, column);
    raw = *reinterpret_cast<const uint4*>(from);
    scale = *view.scales_block_paged_ptr(item.sequence, token, item.kv_head, column);
  }
  const uint4 low{ScaledPair<T>(raw.x, 0, scale), ScaledPair<T>(raw.x, 2, scale),
                  ScaledPair<T>(raw.y, 0, scale), ScaledPair<T>(raw.y, 2, scale)};
  const uint4 high{ScaledPair<T>(raw.z, 0, scale), ScaledPair<T>(raw.z, 2, scale),
                   ScaledPair<T>(raw.w, 0, scale), ScaledPair<T>(raw.w, 2, scale)};
  const std::uint32_t row = token % kKvTile;
  *reinterpret_cast<uint4*>(tile + Tile::At(row, column / 8)) = low;
  *reinterpret_cast<uint4*>(tile + Tile::At(row, column / 8 + 1)) = high;
}

template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void ConvertTile(const TileArgs<T>& args, const AttentionWork& item,
                                            std::uint32_t tile, std::uint32_t keys_end,
                                            std::byte* stage) {
  using Shape = PrefillShape<T, kColumns>;
  constexpr std::uint32_t kPieces = kColumns / 16;
  static_assert(kKvTile * kPieces % kPrefillThreads == 0);
#pragma unroll
  for (std::uint32_t j = 0; j < kKvTile * kPieces / kPrefillThreads; ++j) {
    const std::uint32_t i = cuda::ThreadIndex() + j * kPrefillThreads;
    const std::uint32_t token = tile * kKvTile + i / kPieces;
    const std::uint32_t column = i % kPieces * 16;
    const bool valid = token < keys_end && column < args.keys.head_size();
    ConvertPiece<T, kColumns>(args.keys, item, token, column, valid, stage);
    ConvertPiece<T, kColumns>(args.values, item, token, column, valid, stage + Shape::Tile::kBytes);
  }
}

// State of one thread for rows lane / 4 and lane / 4 + 8 of its warp's 16 rows.
template <typename T, std::uint32_t kColumns>
struct PrefillWarp {
  using Shape = PrefillShape<T, kColumns>;
  using Tile = typename Shape::Tile;
  static constexpr std::uint32_t kSteps = kColumns / 16;
  static constexpr std::uint32_t kTokens = kKvTile / 8;

  std::uint32_t q[kSteps][4];
  float o[2 * kSteps][4];
  float max[2];
  float sum[2];  // partial sum of this lane
  std::uint32_t position[2];
  std::uint32_t first_position;  // lowest position of the warp's rows
  std::uint32_t last_position;

  // Loads the queries and clears the state. Rows beyond the item's count have zero queries.
  __device__ __forceinline__ void Start(const ItemRows<T>& rows) {
    const std::uint32_t first = cuda::Warp() * 16;
    const std::uint32_t lane_column = cuda::Lane() % 4;
    const std::uint32_t head_size = rows.args.keys.head_size();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t row = first + cuda::Lane() / 4 + 8 * half;
      const bool valid = row < rows.item.num_rows;
      const BF16* const from =
          rows.args.q + (valid ? rows.Offset(row, rows.args.q_stride) : std::int64_t{0});
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        q[i][half] = 0;
        q[i][half + 2] = 0;
        if (!valid || i * 16 >= head_size) continue;
        const auto* const pairs = reinterpret_cast<const std::uint32_t*>(from + i * 16);
        q[i][half] = pairs[lane_column];
        q[i][half + 2] = pairs[lane_column + 4];
      }
    }
    Clear(rows);
  }
  // Resets everything except the queries.
  __device__ __forceinline__ void Clear(const ItemRows<T>& rows) {
    const std::uint32_t first = cuda::Warp() * 16;
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      position[half] = rows.Position(first + cuda::Lane() / 4 + 8 * half);
      max[half] = kNoScore;
      sum[half] = 0;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 2 * kSteps; ++i) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) o[i][j] = 0;
    }
    first_position = rows.Position(first);
    last_position = rows.Position(first + 15);
  }

  // Computes s[n], the products q . k of tokens 8 n .. 8 n + 7.
  __device__ __forceinline__ void Scores(const std::byte* keys, float (&s)[kTokens][4]) const {
    const std::uint32_t lane = cuda::Lane();
    const std::uint32_t row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (std::uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) s[n][j] = 0;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
      for (std::uint32_t n = 0; n < kTokens; n += 2) {
        std::uint32_t r[4];
        cuda::LdMatrixX4(r, keys + Tile::At(8 * n + row, 2 * i + lane / 8 % 2));
        cuda::MmaBF16(s[n], q[i], {r[0], r[1]});
        cuda::MmaBF16(s[n + 1], q[i], {r[2], r[3]});
      }
    }
  }

  // Converts products q . k to scores times log2(e).
  static __device__ __forceinline__ void ScaleScores(float scale_log2, float cap_log2,
                                                     float (&s)[kTokens][4]) {
#pragma unroll
    for (std::uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) s[n][j] = cuda::Mul(s[n][j], scale_log2);
    }
    if (!(cap_log2 > 0)) return;
#pragma unroll
    for (std::uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) s[n][j] = CapScore(s[n][j], cap_log2);
    }
  }

  // Converts the scores of a tile that starts at token `first` to weights, and rescales o.
  __device__ __forceinline__ void Softmax(std::uint32_t first, const ScoreRules& rules,
                                          float (&s)[kTokens][4]) {
    const bool masked = first + kKvTile - 1 > first_position || first < rules.First(last_position);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      const VisibleKeys visible = rules.Visible(position[half]);
      float largest = kNoScore;
#pragma unroll
      for (std::uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
        for (std::uint32_t j = 0; j < 2; ++j) {
          float& score = s[n][2 * half + j];
          const std::uint32_t token = first + 8 * n + 2 * (cuda::Lane() % 4) + j;
          if (masked && !visible.Has(token)) score = kNoScore;
          largest = cuda::Max(largest, score);
        }
      }
      largest = cuda::Max(largest, cuda::ShuffleXor(largest, 1));
      largest = cuda::Max(largest, cuda::ShuffleXor(largest, 2));
      const float before = max[half];
      max[half] = cuda::Max(before, largest);
      const float base = ScoreBase<DeviceMath>(max[half]);
      const float factor = cuda::Exp2Approx(cuda::Sub(before, base));
      float total = cuda::Mul(sum[half], factor);
#pragma unroll
      for (std::uint32_t n = 0; n < kTokens; ++n) {
#pragma unroll
        for (std::uint32_t j = 0; j < 2; ++j) {
          float& score = s[n][2 * half + j];
          score = cuda::Exp2Approx(cuda::Sub(score, base));
          total = cuda::Add(total, score);
        }
      }
      sum[half] = total;
#pragma unroll
      for (std::uint32_t i = 0; i < 2 * kSteps; ++i) {
        o[i][2 * half] = cuda::Mul(o[i][2 * half], factor);
        o[i][2 * half + 1] = cuda::Mul(o[i][2 * half + 1], factor);
      }
    }
  }

  // o += P V.
  __device__ __forceinline__ void AddValues(const std::byte* values, const float (&s)[kTokens][4]) {
    const std::uint32_t lane = cuda::Lane();
    const std::uint32_t row = lane % 16;
#pragma unroll
    for (std::uint32_t n = 0; n < kTokens; n += 2) {
      const std::uint32_t p[4] = {
          cuda::PackBF16(s[n][0], s[n][1]), cuda::PackBF16(s[n][2], s[n][3]),
          cuda::PackBF16(s[n + 1][0], s[n + 1][1]), cuda::PackBF16(s[n + 1][2], s[n + 1][3])};
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        std::uint32_t r[4];
        cuda::LdMatrixX4Trans(r, values + Tile::At(8 * n + row, 2 * i + lane / 16));
        cuda::MmaBF16(o[2 * i], p, {r[0], r[1]});
        cuda::MmaBF16(o[2 * i + 1], p, {r[2], r[3]});
      }
    }
  }

  // Processes a tile of 64 tokens. Skips a tile that no row of the warp sees.
  __device__ __forceinline__ void Tile64(const std::byte* stage, std::uint32_t tile,
                                         float scale_log2, const ScoreRules& rules) {
    const std::uint32_t first = tile * kKvTile;
    if (first > last_position) return;
    if (first + kKvTile <= rules.First(first_position)) return;
    float s[kTokens][4];
    Scores(stage, s);
    ScaleScores(scale_log2, rules.cap_log2, s);
    Softmax(first, rules, s);
    AddValues(stage + Tile::kBytes, s);
  }

  __device__ __forceinline__ void Write(const ItemRows<T>& rows) const {
    const std::uint32_t head_size = rows.args.keys.head_size();
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      State state{max[half], sum[half]};
      state.sum = cuda::Add(state.sum, cuda::ShuffleXor(state.sum, 1));
      state.sum = cuda::Add(state.sum, cuda::ShuffleXor(state.sum, 2));
      const std::uint32_t row = cuda::Warp() * 16 + cuda::Lane() / 4 + 8 * half;
      if (row >= rows.item.num_rows) continue;
      state = AddSink(state, rows.Sink(row));
      auto* const to =
          reinterpret_cast<std::uint32_t*>(rows.args.out + rows.Offset(row, rows.args.out_stride));
#pragma unroll
      for (std::uint32_t i = 0; i < 2 * kSteps; ++i) {
        if (i * 8 >= head_size) continue;
        to[i * 4 + cuda::Lane() % 4] = cuda::PackBF16(FinishValue(state, o[i][2 * half]),
                                                      FinishValue(state, o[i][2 * half + 1]));
      }
    }
  }
};

template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void PrefillItem(const TileArgs<T>& args, const AttentionWork& item) {
  using Shape = PrefillShape<T, kColumns>;
  constexpr std::uint32_t kStages = Shape::kStages;
  constexpr std::uint32_t kTileBytes = Shape::Tile::kBytes;
  std::byte* const shared = cuda::SharedMemory16();
  const ItemRows<T> rows(args, item);
  const std::uint32_t keys_end = rows.KeysEnd();
  const std::uint32_t first = rows.FirstTile();
  const std::uint32_t end = (keys_end + kKvTile - 1) / kKvTile;
  if constexpr (!Shape::kConverted) {
#pragma unroll
    for (std::uint32_t i = 0; i < kStages - 1; ++i) {
      std::byte* const to = shared + i * Shape::kStageBytes;
      if (first + i < end) {
        CopyTile<T, kColumns, kPrefillThreads>(args, item, first + i, keys_end, to,
                                               to + kTileBytes);
      }
      cuda::CpAsyncCommit();
    }
  }
  PrefillWarp<T, kColumns> warp;
  warp.Start(rows);
  std::uint32_t stage = 0;
  for (std::uint32_t tile = first; tile < end; ++tile) {
    std::byte* const current = shared + stage * Shape::kStageBytes;
    if constexpr (Shape::kConverted) {
      cuda::SyncBlock();  // no thread reads the previous tile any longer
      ConvertTile<T, kColumns>(args, item, tile, keys_end, current);
      cuda::SyncBlock();
    } else {
      const std::uint32_t free_stage = stage == 0 ? kStages - 1 : stage - 1;
      stage = stage + 1 == kStages ? 0 : stage + 1;
      // After the barrier all threads see the tile, and no thread reads the previous tile any
      // longer.
      cuda::CpAsyncWait<kStages - 2>();
      cuda::SyncBlock();
      std::byte* const to = shared + free_stage * Shape::kStageBytes;
      if (tile + kStages - 1 < end) {
        CopyTile<T, kColumns, kPrefillThreads>(args, item, tile + kStages - 1, keys_end, to,
                                               to + kTileBytes);
      }
      cuda::CpAsyncCommit();
    }
    warp.Tile64(current, tile, args.scale_log2, args.rules);
  }
  warp.Write(rows);
}

template <typename T, std::uint32_t kColumns>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillKernel(const __grid_constant__ TileArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t count = args.lists.counts->prefill;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    PrefillItem<T, kColumns>(args, args.lists.prefill[i]);
    cuda::SyncBlock();  // the stages may be reused
  }
}

template <typename T, std::uint32_t kColumns>
absl::Status LaunchPrefillColumns(const CudaContext& context, const TileArgs<T>& args,
                                  std::uint32_t blocks) {
  return cuda::Launch(context, "attention prefill", PrefillKernel<T, kColumns>,
                      {.blocks_x = blocks,
                       .threads = kPrefillThreads,
                       .shared_bytes = PrefillShape<T, kColumns>::kSharedBytes,
                       .programmatic = true},
                      args);
}

// Each translation unit instantiates LaunchPrefill for one element type, to limit compile time.
template <typename T>
absl::Status LaunchPrefill(const CudaContext& context, const TileArgs<T>& args,
                           std::uint32_t blocks) {
  if (args.keys.head_size() <= 64) return LaunchPrefillColumns<T, 64>(context, args, blocks);
  if constexpr (sizeof(T) == 2) {
    if (args.keys.head_size() <= 96) return LaunchPrefillColumns<T, 96>(context, args, blocks);
  }
  return LaunchPrefillColumns<T, 128>(context, args, blocks);
}

}  // namespace quire::kernels::attention
