#pragma once

// Decode: eight packed rows of one KV head attend to a range of keys. See README.md.
//
//   S^T [16 tokens, 8 rows] = K Q^T      A: K by ldmatrix; B: Q^T in registers
//   O^T [16 columns, 8 rows] += V^T P^T  A: V by ldmatrix.trans; B: P^T by movmatrix
//
// Because rows are the N dimension of both products, they are padded to 8 instead of 16. Query
// heads that share a KV head share its loads. Each of four warps processes 16 tokens of a tile and
// keeps a separate state over a span of eight tiles. The states are reduced in warp order at the
// end of the span. K and V are read from memory once. cp.async keeps kStages - 1 tiles in flight.
//
// One-byte pages: elements are converted to f16 and multiplied without their scales. K's scale
// multiplies a token's scores. V's scale multiplies P after the sum of weights is computed. To keep
// P within f16, V's scale is first divided by a power of two. This divisor is the largest V scale
// of the warp's tokens that the row sees, rounded up to a power of two. The rescaling of O includes
// the divisor. For one-byte elements, ldmatrix permutes columns. Loading Q's columns in a matching
// order undoes the permutation of K. Storing O's columns in a matching order undoes the permutation
// of V.
//
// Swapped operands are from XQA (TensorRT-LLM). Scale folding and split KV are from FlashInfer and
// FlashAttention.

#include <algorithm>

#include "base/status.h"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {

inline constexpr std::uint32_t kDecodeThreads = 128;
inline constexpr std::uint32_t kDecodeWarps = kDecodeThreads / cuda::kWarpSize;

template <typename T, std::uint32_t kColumns>
struct DecodeShape {
  using Tile = TileShape<T, kColumns>;
  static constexpr bool kScaled = kQuantizedKv<T>;
  static constexpr std::uint32_t kScaleBytes = kScaled ? kKvTile * 4 : 0;
  // A stage contains K, V, the scales of K and the scales of V.
  static constexpr std::uint32_t kStageBytes = 2 * Tile::kBytes + 2 * kScaleBytes;
  static constexpr std::uint32_t kStages = Tile::kBytes >= 16384 ? 3 : 4;
  static constexpr std::uint32_t kSharedBytes = kStages * kStageBytes;
  // At the end of a span, the warps' states overwrite the stage that was read last.
  static constexpr std::uint32_t kWarpFloats = kColumns * kDecodeRows;
  static_assert(4 * kDecodeWarps * (kWarpFloats + 2 * kDecodeRows) <= kStageBytes);
};

// Returns the smallest power of two that is at least x. REQUIRES: 0 < x < 2^127, normal.
__device__ __forceinline__ float PowerOfTwoFrom(float x) {
  const std::uint32_t bits = cuda::FloatBits(x);
  return cuda::BitsFloat((bits + 0x007fffffu) & 0x7f800000u);
}
// Returns the reciprocal of a power of two in [2^-126, 2^127]. The reciprocal of 2^127 is
// subnormal.
__device__ __forceinline__ float ReciprocalOfPower(float x) {
  return cuda::Div(1.0f, x);
}

// Converts two of four bytes to two f16. The bytes are 0 and 1 for kPair 0, 2 and 3 for kPair 1, 0
// and 2 for kPair 2, and 1 and 3 for kPair 3.
template <typename T, int kPair>
__device__ __forceinline__ std::uint32_t WidenPair(std::uint32_t bytes) {
  if constexpr (std::is_same_v<T, F8E4M3>) {
    constexpr std::uint32_t kSelect[] = {0x4410, 0x4432, 0x4420, 0x4431};
    return cuda::E4M3ToF16(cuda::BytePermute(bytes, 0, kSelect[kPair]));
  } else {
    // 0x64xx is 1024 + xx, where xx is the value plus 128.
    constexpr std::uint32_t kSelect[] = {0x4140, 0x4342, 0x4240, 0x4341};
    return cuda::SubF16(cuda::BytePermute(bytes ^ 0x80808080u, 0x64646464u, kSelect[kPair]),
                        0x64806480u);
  }
}

// State of one thread, whose warp processes 16 tokens of each tile. The thread holds its MMA
// fragment of every 16 columns, for rows 2 (lane % 4) and 2 (lane % 4) + 1 of the item.
template <typename T, std::uint32_t kColumns>
struct DecodeWarp {
  using Shape = DecodeShape<T, kColumns>;
  using Tile = typename Shape::Tile;
  static constexpr std::uint32_t kSteps = kColumns / 16;
  static constexpr bool kBF16 = kMultiplyBF16<T>;

  std::uint32_t q[kSteps][2];
  float o[kSteps][4];
  float max[2];
  float sum[2];
  float unit[2];  // one-byte pages: power of two that o must still be multiplied by
  std::uint32_t position[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) o[i][j] = 0;
    }
#pragma unroll
    for (std::uint32_t j = 0; j < 2; ++j) {
      max[j] = kNoScore;
      sum[j] = 0;
      unit[j] = 1;
    }
  }

  // Loads the queries. Rows beyond the item's count are zeros.
  __device__ __forceinline__ void LoadQueries(const ItemRows<T>& rows) {
    const std::uint32_t row = cuda::Lane() / 4;
    const std::uint32_t lane_column = cuda::Lane() % 4;
    const std::uint32_t head_size = rows.args.keys.head_size();
    const bool valid = row < rows.item.num_rows;
    const BF16* const from =
        rows.args.q + (valid ? rows.Offset(row, rows.args.q_stride) : std::int64_t{0});
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      q[i][0] = 0;
      q[i][1] = 0;
      if (!valid || i * 16 >= head_size) continue;
      const auto* const pairs = reinterpret_cast<const std::uint32_t*>(from + i * 16);
      if constexpr (Shape::kScaled) {
        q[i][0] = QueryPair<kBF16>(pairs[2 * lane_column]);
        q[i][1] = QueryPair<kBF16>(pairs[2 * lane_column + 1]);
      } else {
        q[i][0] = QueryPair<kBF16>(pairs[lane_column]);
        q[i][1] = QueryPair<kBF16>(pairs[lane_column + 4]);
      }
    }
#pragma unroll
    for (std::uint32_t j = 0; j < 2; ++j) position[j] = rows.Position(2 * lane_column + j);
  }

  // Computes s = q . k for the warp's tokens.
  __device__ __forceinline__ void Scores(const std::byte* keys, float (&s)[4]) const {
    const std::uint32_t lane = cuda::Lane();
    const std::uint32_t row = cuda::Warp() * 16 + lane % 16;
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) s[j] = 0;
    if constexpr (!Shape::kScaled) {
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        std::uint32_t a[4];
        cuda::LdMatrixX4(a, keys + Tile::At(row, 2 * i + lane / 16));
        Mma<kBF16>(s, a, q[i]);
      }
    } else {
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; i += 2) {
        std::uint32_t r[4];
        cuda::LdMatrixX4(r, keys + Tile::At(row, i + lane / 16));
        const std::uint32_t a0[4] = {WidenPair<T, 0>(r[0]), WidenPair<T, 0>(r[1]),
                                     WidenPair<T, 1>(r[0]), WidenPair<T, 1>(r[1])};
        const std::uint32_t a1[4] = {WidenPair<T, 0>(r[2]), WidenPair<T, 0>(r[3]),
                                     WidenPair<T, 1>(r[2]), WidenPair<T, 1>(r[3])};
        Mma<kBF16>(s, a0, q[i]);
        Mma<kBF16>(s, a1, q[i + 1]);
      }
    }
  }

  // o += V^T P^T.
  __device__ __forceinline__ void AddValues(const std::byte* values, const std::uint32_t (&p)[2]) {
    const std::uint32_t lane = cuda::Lane();
    if constexpr (!Shape::kScaled) {
      const std::uint32_t row = cuda::Warp() * 16 + lane / 16 * 8 + lane % 8;
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        std::uint32_t a[4];
        cuda::LdMatrixX4Trans(a, values + Tile::At(row, 2 * i + lane / 8 % 2));
        Mma<kBF16>(o[i], a, p);
      }
    } else {
      const std::uint32_t row = cuda::Warp() * 16 + lane % 16;
#pragma unroll
      for (std::uint32_t i = 0; i < kSteps; i += 2) {
        std::uint32_t r[4];
        cuda::LdMatrixX4Trans(r, values + Tile::At(row, i + lane / 16));
        const std::uint32_t a0[4] = {WidenPair<T, 2>(r[0]), WidenPair<T, 3>(r[0]),
                                     WidenPair<T, 2>(r[1]), WidenPair<T, 3>(r[1])};
        const std::uint32_t a1[4] = {WidenPair<T, 2>(r[2]), WidenPair<T, 3>(r[2]),
                                     WidenPair<T, 2>(r[3]), WidenPair<T, 3>(r[3])};
        Mma<kBF16>(o[i], a0, p);
        Mma<kBF16>(o[i + 1], a1, p);
      }
    }
  }

  __device__ __forceinline__ void Tile64(const std::byte* stage, std::uint32_t tile,
                                         float scale_log2, const ScoreRules& rules) {
    Tile64(stage, tile, scale_log2, rules, [stage] { return stage + Tile::kBytes; });
  }
  // Processes one tile of 64 tokens. K and scales are at `stage`; values_of returns the address of
  // V and is called when V is needed. s[2 t + j] is the score of token lane / 4 + 8 t of the warp
  // for row j of the thread.
  template <typename ValuesOf>
  __device__ __forceinline__ void Tile64(const std::byte* stage, std::uint32_t tile,
                                         float scale_log2, const ScoreRules& rules,
                                         const ValuesOf& values_of) {
    const std::uint32_t row = cuda::Warp() * 16 + cuda::Lane() / 4;
    const auto* const k_scales = reinterpret_cast<const float*>(stage + 2 * Tile::kBytes);
    float s[4];
    Scores(stage, s);
    float factor[2];
#pragma unroll
    for (std::uint32_t j = 0; j < 2; ++j) {
      const VisibleKeys visible = rules.Visible(position[j]);
#pragma unroll
      for (std::uint32_t t = 0; t < 2; ++t) {
        float scale = scale_log2;
        if constexpr (Shape::kScaled) scale = cuda::Mul(k_scales[row + 8 * t], scale);
        float score = cuda::Mul(s[2 * t + j], scale);
        if (rules.cap_log2 > 0) score = CapScore(score, rules.cap_log2);
        s[2 * t + j] = visible.Has(tile * kKvTile + row + 8 * t) ? score : kNoScore;
      }
      const float before = max[j];
      max[j] = cuda::Max(max[j], LaneMax(cuda::Max(s[j], s[j + 2])));
      const float base = ScoreBase<DeviceMath>(max[j]);
      factor[j] = cuda::Exp2Approx(cuda::Sub(before, base));
      s[j] = cuda::Exp2Approx(cuda::Sub(s[j], base));
      s[j + 2] = cuda::Exp2Approx(cuda::Sub(s[j + 2], base));
      sum[j] = cuda::Fma(sum[j], factor[j], cuda::Add(s[j], s[j + 2]));
    }
    if constexpr (Shape::kScaled) {
      ApplyValueScales(k_scales + kKvTile, tile * kKvTile, row, rules, s, factor);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) o[i][j] = cuda::Mul(o[i][j], factor[j % 2]);
    }
    const std::uint32_t p[2] = {cuda::MovMatrixTrans(Pack<kBF16>(s[0], s[1])),
                                cuda::MovMatrixTrans(Pack<kBF16>(s[2], s[3]))};
    AddValues(values_of(), p);
  }

  // Multiplies P by V's scales. Only scales of tokens that a row sees determine the row's `unit`.
  // Otherwise the row's bits would depend on later tokens.
  __device__ __forceinline__ void ApplyValueScales(const float* scales, std::uint32_t first,
                                                   std::uint32_t row, const ScoreRules& rules,
                                                   float (&p)[4], float (&factor)[2]) {
#pragma unroll
    for (std::uint32_t j = 0; j < 2; ++j) {
      const VisibleKeys visible = rules.Visible(position[j]);
      const float s0 = visible.Has(first + row) ? scales[row] : 0.0f;
      const float s1 = visible.Has(first + row + 8) ? scales[row + 8] : 0.0f;
      const float largest = LaneMax(cuda::Max(s0, s1));
      const float next = largest > 0 ? PowerOfTwoFrom(largest) : unit[j];
      const float inverse = ReciprocalOfPower(next);
      p[j] = cuda::Mul(p[j], cuda::Mul(s0, inverse));
      p[j + 2] = cuda::Mul(p[j + 2], cuda::Mul(s1, inverse));
      factor[j] = cuda::Mul(factor[j], cuda::Mul(unit[j], inverse));
      unit[j] = next;
    }
  }

  // Returns the maximum over the lanes that share a row.
  static __device__ __forceinline__ float LaneMax(float x) {
#pragma unroll
    for (std::uint32_t mask = 4; mask < cuda::kWarpSize; mask *= 2) {
      x = cuda::Max(x, cuda::ShuffleXor(x, mask));
    }
    return x;
  }

  // Stores the warp's state of the span: values [columns][rows] of all warps, then their maxima and
  // sums.
  __device__ __forceinline__ void StoreState(float* scratch) {
    const std::uint32_t fragment_row = cuda::Lane() / 4;
    const std::uint32_t row = 2 * (cuda::Lane() % 4);
    float* const values = scratch + cuda::Warp() * Shape::kWarpFloats;
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        const std::uint32_t column =
            i * 16 + (Shape::kScaled ? 2 * fragment_row + half : fragment_row + 8 * half);
        float2 pair{o[i][2 * half], o[i][2 * half + 1]};
        if constexpr (Shape::kScaled) {
          pair = {cuda::Mul(pair.x, unit[0]), cuda::Mul(pair.y, unit[1])};
        }
        *reinterpret_cast<float2*>(values + column * kDecodeRows + row) = pair;
      }
    }
    float* const states = scratch + kDecodeWarps * Shape::kWarpFloats + cuda::Warp() * 16;
#pragma unroll
    for (std::uint32_t j = 0; j < 2; ++j) {
      float total = sum[j];
#pragma unroll
      for (std::uint32_t mask = 4; mask < cuda::kWarpSize; mask *= 2) {
        total = cuda::Add(total, cuda::ShuffleXor(total, mask));
      }
      if (fragment_row == 0) {
        states[row + j] = max[j];
        states[8 + row + j] = total;
      }
    }
  }
};

// Reduces the four warps' states of a span in warp order.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void ReduceSpan(const float* scratch, RowReduction<kColumns>* reduce) {
  using Shape = DecodeShape<T, kColumns>;
  constexpr std::uint32_t kPerThread = RowReduction<kColumns>::kPerThread;
  const float* const states = scratch + kDecodeWarps * Shape::kWarpFloats;
  const std::uint32_t row = cuda::ThreadIndex() % kDecodeRows;
  State span{states[row], states[8 + row]};
  float values[kPerThread];
#pragma unroll
  for (std::uint32_t j = 0; j < kPerThread; ++j) {
    values[j] = scratch[cuda::ThreadIndex() + kDecodeThreads * j];
  }
#pragma unroll
  for (std::uint32_t w = 1; w < kDecodeWarps; ++w) {
    const Reduce step = ReduceState(&span, State{states[16 * w + row], states[16 * w + 8 + row]});
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      values[j] =
          ReduceValue(step, values[j],
                      scratch[w * Shape::kWarpFloats + cuda::ThreadIndex() + kDecodeThreads * j]);
    }
  }
  reduce->Add(span, values);
}

// Starts copying a tile and its scales.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void CopyStage(const TileArgs<T>& args, const AttentionWork& item,
                                          std::uint32_t tile, std::uint32_t keys_end,
                                          std::byte* stage) {
  using Shape = DecodeShape<T, kColumns>;
  constexpr std::uint32_t kTileBytes = Shape::Tile::kBytes;
  CopyTile<T, kColumns, kDecodeThreads>(args, item, tile, keys_end, stage, stage + kTileBytes);
  if constexpr (Shape::kScaled) {
    static_assert(kDecodeThreads == 2 * kKvTile);
    const std::uint32_t thread = cuda::ThreadIndex();
    const std::uint32_t token = tile * kKvTile + thread % kKvTile;
    const bool valid = token < keys_end;
    const KvView<T>& view = thread < kKvTile ? args.keys : args.values;
    const float* const from =
        valid ? view.scales_block_paged_ptr(item.sequence, token, item.kv_head) : view.scales;
    cuda::CpAsync4(stage + 2 * kTileBytes + 4 * thread, from, valid);
  }
}

// Records that this block has written a partial result of `merge`. Returns true in the block that
// records the last one. That block then sees all partial results of `merge`. `flag` is shared
// memory that no thread uses before `sync`. `sync` synchronizes all threads that wrote the result.
template <typename Sync>
__device__ __forceinline__ bool RecordPartial(AttentionMerge* merge, std::uint32_t* flag,
                                              const Sync& sync) {
  // The thread that does the atomic also does the fences. The barriers extend the ordering to all
  // threads.
  sync();
  if (cuda::ThreadIndex() == 0) {
    cuda::DeviceFence();
    *flag = cuda::AtomicAdd(&merge->arrived, 1u);
    cuda::DeviceFence();
  }
  sync();
  return *flag + 1 == merge->num_partials;
}

// Computes the output of the item's rows from the partial results of all their keys, in key order.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void MergePartials(const ItemRows<T>& rows,
                                              const AttentionMerge& merge) {
  constexpr std::uint32_t kPerThread = RowReduction<kColumns>::kPerThread;
  const AttentionWorkLists& lists = rows.args.lists;
  const std::uint32_t columns = lists.partial_columns;
  const std::uint32_t row = cuda::ThreadIndex() % kDecodeRows;
  const std::uint32_t num_partials = merge.num_partials;
  const float* partial = lists.partials + std::int64_t{merge.first_partial} * lists.partial_floats;
  std::uint32_t span = merge.first_span;
  RowReduction<kColumns> reduce;
  reduce.Clear();
  // Unrolled, so that several loads are pending at a time.
#pragma unroll 4
  for (std::uint32_t i = 0; i < num_partials; ++i) {
    float values[kPerThread];
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      values[j] =
          16 * j < columns ? cuda::LoadAtL2(partial + cuda::ThreadIndex() + kDecodeThreads * j) : 0;
    }
    reduce.Add(State{cuda::LoadAtL2(partial + columns * kDecodeRows + row),
                     cuda::LoadAtL2(partial + (columns + 1) * kDecodeRows + row)},
               values);
    partial += lists.partial_floats;
    span += merge.spans_per_partial;
    if (span % kSpansPerGroup == 0 || i + 1 == num_partials) reduce.EndGroup();
  }
  if (row >= rows.item.num_rows) return;
  reduce.Write(rows.args.out + rows.Offset(row, rows.args.out_stride), rows.args.keys.head_size(),
               rows.Sink(row));
}

// Finishes an item by writing its output, or a partial result. The block that writes the last
// partial result of the rows also merges them into the output. RecordPartial describes `flag` and
// `sync`.
template <typename T, std::uint32_t kColumns, typename Sync>
__device__ __forceinline__ void FinishItem(const ItemRows<T>& rows,
                                           const RowReduction<kColumns>& reduce,
                                           std::uint32_t* flag, const Sync& sync) {
  const std::uint32_t row = cuda::ThreadIndex() % kDecodeRows;
  const TileArgs<T>& args = rows.args;
  if (rows.item.partial == AttentionWork::kNoPartial) {
    if (row < rows.item.num_rows) {
      reduce.Write(args.out + rows.Offset(row, args.out_stride), args.keys.head_size(),
                   rows.Sink(row));
    }
    return;
  }
  const std::uint32_t columns = args.lists.partial_columns;
  float* const partial =
      args.lists.partials + std::int64_t{rows.item.partial} * args.lists.partial_floats;
#pragma unroll
  for (std::uint32_t j = 0; j < RowReduction<kColumns>::kPerThread; ++j) {
    if (16 * j < columns) partial[cuda::ThreadIndex() + kDecodeThreads * j] = reduce.row_values[j];
  }
  if (cuda::ThreadIndex() < kDecodeRows) {
    partial[columns * kDecodeRows + row] = reduce.row.max;
    partial[(columns + 1) * kDecodeRows + row] = reduce.row.sum;
  }
  AttentionMerge* const merge = args.lists.merge + rows.item.merge;
  if (!RecordPartial(merge, flag, sync)) return;
  if (cuda::ThreadIndex() == 0) merge->arrived = 0;
  MergePartials<T, kColumns>(rows, *merge);
}

// The tiles of an item that contain keys which its rows see. If there are no such tiles, end <=
// first, and the item writes an empty state.
struct TileRange {
  std::uint32_t first;
  std::uint32_t end;
};
template <typename T>
__device__ __forceinline__ TileRange TilesOf(const ItemRows<T>& rows, std::uint32_t keys_end) {
  const std::uint32_t planned = rows.item.first_span * kTilesPerSpan;
  const std::uint32_t planned_end = planned + rows.item.num_spans * kTilesPerSpan;
  const std::uint32_t seen = rows.FirstTile();
  const std::uint32_t existing = (keys_end + kKvTile - 1) / kKvTile;
  return {planned > seen ? planned : seen, planned_end < existing ? planned_end : existing};
}

// Called after tile remaining.first of the item. remaining.end is the end of the item's tiles. If
// the tile is the last one of a span, reduces the warps' states into `reduce`. `scratch` is shared
// memory that no pending copy writes.
template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void EndTile(const TileRange& remaining, float* scratch,
                                        DecodeWarp<T, kColumns>* warp,
                                        RowReduction<kColumns>* reduce) {
  const auto [tile, end] = remaining;
  if (tile % kTilesPerSpan != kTilesPerSpan - 1 && tile + 1 != end) return;
  cuda::SyncBlock();
  warp->StoreState(scratch);
  cuda::SyncBlock();
  ReduceSpan<T, kColumns>(scratch, reduce);
  warp->Clear();
  if (tile / kTilesPerSpan % kSpansPerGroup == kSpansPerGroup - 1 || tile + 1 == end) {
    reduce->EndGroup();
  }
}

template <typename T, std::uint32_t kColumns>
__device__ __forceinline__ void DecodeItem(const TileArgs<T>& args, const AttentionWork& item) {
  using Shape = DecodeShape<T, kColumns>;
  constexpr std::uint32_t kStages = Shape::kStages;
  std::byte* const shared = cuda::SharedMemory16();
  const ItemRows<T> rows(args, item);
  const std::uint32_t keys_end = rows.KeysEnd();
  const auto [first, end] = TilesOf(rows, keys_end);

#pragma unroll
  for (std::uint32_t i = 0; i < kStages - 1; ++i) {
    if (first + i < end) {
      CopyStage<T, kColumns>(args, item, first + i, keys_end, shared + i * Shape::kStageBytes);
    }
    cuda::CpAsyncCommit();
  }
  DecodeWarp<T, kColumns> warp;
  warp.LoadQueries(rows);
  warp.Clear();
  RowReduction<kColumns> reduce;
  reduce.Clear();
  std::uint32_t stage = 0;
  for (std::uint32_t tile = first; tile < end; ++tile) {
    std::byte* const current = shared + stage * Shape::kStageBytes;
    const std::uint32_t free_stage = stage == 0 ? kStages - 1 : stage - 1;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    // After the barrier all threads see the tile, and no thread reads the previous tile any longer.
    cuda::CpAsyncWait<kStages - 2>();
    cuda::SyncBlock();
    if (tile + kStages - 1 < end) {
      CopyStage<T, kColumns>(args, item, tile + kStages - 1, keys_end,
                             shared + free_stage * Shape::kStageBytes);
    }
    cuda::CpAsyncCommit();
    warp.Tile64(current, tile, args.scale_log2, args.rules);
    EndTile<T, kColumns>({tile, end}, reinterpret_cast<float*>(current), &warp, &reduce);
  }
  // All tiles have arrived and have been read, so the flag may overwrite any stage.
  FinishItem<T, kColumns>(rows, reduce, reinterpret_cast<std::uint32_t*>(shared),
                          [] { cuda::SyncBlock(); });
}

template <typename T, std::uint32_t kColumns>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DecodeKernel(const __grid_constant__ TileArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t count = args.lists.counts->decode;
  for (std::uint32_t i = cuda::BlockX(); i < count; i += cuda::GridX()) {
    DecodeItem<T, kColumns>(args, args.lists.decode[i]);
    cuda::SyncBlock();  // the stages may be reused
  }
}

template <typename T, std::uint32_t kColumns>
absl::Status LaunchDecodeColumns(const CudaContext& context, const TileArgs<T>& args,
                                 std::uint32_t max_blocks) {
  constexpr char kName[] = "attention decode";
  cuda::LaunchShape shape{.threads = kDecodeThreads,
                          .shared_bytes = DecodeShape<T, kColumns>::kSharedBytes,
                          .programmatic = true};
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t blocks_per_sm,
                         cuda::MaxBlocksPerSm(context, kName, DecodeKernel<T, kColumns>, shape));
  shape.blocks_x = std::min(max_blocks, blocks_per_sm * context.num_sms);
  return cuda::Launch(context, kName, DecodeKernel<T, kColumns>, shape, args);
}

// Each translation unit instantiates LaunchDecode for one element type, to limit compile time.
template <typename T>
absl::Status LaunchDecode(const CudaContext& context, const TileArgs<T>& args,
                          std::uint32_t max_blocks) {
  if (args.keys.head_size() <= 64) return LaunchDecodeColumns<T, 64>(context, args, max_blocks);
  if constexpr (sizeof(T) == 2) {
    if (args.keys.head_size() <= 96) return LaunchDecodeColumns<T, 96>(context, args, max_blocks);
  }
  return LaunchDecodeColumns<T, 128>(context, args, max_blocks);
}

}  // namespace quire::kernels::attention
