#pragma once

// Code shared by the attention kernels: KV tiles of 64 tokens in shared memory, queries in
// registers, and the reduction of states in the order of attention_work.h.
//
// A row of a tile contains a token's columns of one head, in 16-byte pieces. Pieces are permuted
// inside 128 bytes (piece XOR row mod 8, the 128-byte swizzle of TMA and wgmma). The pieces with
// the same index in eight consecutive rows are then in different banks, so ldmatrix has no bank
// conflicts. Rows of 64 bytes are permuted inside 64 bytes to the same effect. Rows of more than
// 128 bytes consist of several 128-byte slabs.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_state.h"
#include "kernels/attention/attention_work.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels::attention {

// A layer's window or chunk, soft cap and sinks.
struct ScoreRules {
  std::uint32_t window = 0;  // AttentionParams::window
  std::uint32_t chunk = 0;   // AttentionParams::chunk
  // Soft cap times log2(e); 0: no cap. With a cap, q . k times TileArgs::scale_log2 is score / cap.
  float cap_log2 = 0;
  const float* sinks = nullptr;  // [query heads]; null: no sinks

  // Returns the first key that the row at `position` sees. The result never decreases with the
  // position.
  __device__ __forceinline__ std::uint32_t First(std::uint32_t position) const {
    return FirstVisible(position, window, chunk);
  }
  __device__ __forceinline__ VisibleKeys Visible(std::uint32_t position) const {
    return VisibleFrom(First(position), position);
  }
};

// Arguments of the tensor-core kernels; T is the page element type.
template <typename T>
struct TileArgs {
  KvView<T> keys;
  KvView<T> values;
  const BF16* q;
  BF16* out;
  std::int64_t q_stride;
  std::int64_t out_stride;
  const std::uint32_t* row_offsets;
  AttentionWorkLists lists;
  std::uint32_t group;  // query heads per KV head
  float scale_log2;     // factor of q . k: scale * log2(e), or scale / soft cap
  ScoreRules rules;
};

struct DeviceMath {
  using Real = float;
  static __device__ __forceinline__ float Exp2(float x) { return cuda::Exp2Approx(x); }
  static __device__ __forceinline__ float Mul(float a, float b) { return cuda::Mul(a, b); }
  static __device__ __forceinline__ float Fma(float a, float b, float c) {
    return cuda::Fma(a, b, c);
  }
  static __device__ __forceinline__ float Max(float a, float b) { return cuda::Max(a, b); }
};
using State = AttentionState<DeviceMath>;
using Reduce = AttentionReduction<DeviceMath>;

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Returns tanh as 1 - 2 / (e^2x + 1), within 3e-7.
__device__ __forceinline__ float TanhApprox(float x) {
  const float power = cuda::Exp2Approx(cuda::Mul(x, 2 * kLog2E));
  const float rest = cuda::ReciprocalApprox(cuda::Add(power, 1.0f));
  return cuda::Fma(-2.0f, rest, 1.0f);
}
// Returns the capped score times log2(e), where x is score / cap.
__device__ __forceinline__ float CapScore(float x, float cap_log2) {
  return cuda::Mul(cap_log2, TanhApprox(x));
}

// Adds a sink to the state, or nothing if `sink` is null.
__device__ __forceinline__ State AddSink(State state, const float* sink) {
  if (sink == nullptr) return state;
  const float above = cuda::Sub(cuda::Mul(*sink, kLog2E), ScoreBase<DeviceMath>(state.max));
  state.sum = cuda::Add(state.sum, cuda::Exp2Approx(above));
  return state;
}

// Layout of tiles with kColumns elements of T per row. A head may have fewer columns.
template <typename T, std::uint32_t kColumns>
struct TileShape {
  static constexpr std::uint32_t kElementBytes = sizeof(T);
  static constexpr std::uint32_t kPieces = kColumns * kElementBytes / 16;
  static constexpr std::uint32_t kRowBytes = kPieces <= 4 ? 64 : (kPieces + 7) / 8 * 128;
  static constexpr std::uint32_t kBytes = kKvTile * kRowBytes;

  // Returns the byte offset of a piece of a row.
  static __device__ __forceinline__ std::uint32_t At(std::uint32_t row, std::uint32_t piece) {
    if constexpr (kRowBytes == 64) {
      return row * 64 + (((piece ^ (row >> 1)) & 3) << 4);
    } else {
      return (piece >> 3) * (kKvTile * 128) + row * 128 + (((piece ^ row) & 7) << 4);
    }
  }
};

// Multiplies the one-byte elements `first` and `first` + 1 of `bytes` by the scale. Returns the two
// products as bf16.
template <typename T>
__device__ __forceinline__ std::uint32_t ScaledPair(std::uint32_t bytes, std::uint32_t first,
                                                    float scale) {
  float2 x;
  if constexpr (std::is_same_v<T, F8E4M3>) {
    x = cuda::UnpackF16(cuda::E4M3ToF16(bytes >> (8 * first) & 0xffffu));
  } else {
    // 0x4b0000xx is the f32 2^23 + xx, where xx is the value plus 128, so the subtraction is exact.
    // A byte conversion would use the unit that computes exponentials.
    const std::uint32_t above = bytes ^ 0x80808080u;
    constexpr float kOffset = 8388608.0f + 128.0f;
    x = {
        cuda::Sub(cuda::BitsFloat(cuda::BytePermute(above, 0x4b000000u, 0x7540u + first)), kOffset),
        cuda::Sub(cuda::BitsFloat(cuda::BytePermute(above, 0x4b000000u, 0x7541u + first)),
                  kOffset)};
  }
  return cuda::PackBF16(cuda::Mul(x.x, scale), cuda::Mul(x.y, scale));
}

// Starts copying one tile of K and V. Tokens from `keys_end` on and columns beyond the head are
// zero-filled, because a page may contain another sequence's old bytes, and 0 x NaN is NaN.
template <typename T, std::uint32_t kColumns, std::uint32_t kThreads>
__device__ __forceinline__ void CopyTile(const TileArgs<T>& args, const AttentionWork& item,
                                         std::uint32_t tile, std::uint32_t keys_end,
                                         std::byte* keys, std::byte* values) {
  using Shape = TileShape<T, kColumns>;
  static_assert(kKvTile * Shape::kPieces % kThreads == 0);
  const std::uint32_t head_size = args.keys.head_size();
#pragma unroll
  for (std::uint32_t j = 0; j < kKvTile * Shape::kPieces / kThreads; ++j) {
    const std::uint32_t i = cuda::ThreadIndex() + j * kThreads;
    const std::uint32_t row = i / Shape::kPieces;
    const std::uint32_t piece = i % Shape::kPieces;
    const std::uint32_t token = tile * kKvTile + row;
    const std::uint32_t column = piece * (16 / Shape::kElementBytes);
    const bool valid = token < keys_end && column < head_size;
    const std::int64_t at =
        valid ? std::int64_t{args.keys.row_idx(item.sequence, token)} * args.keys.row_elements() +
                    std::int64_t{item.kv_head} * head_size + column
              : 0;
    cuda::CpAsync16(keys + Shape::At(row, piece), args.keys.blocks + at, valid);
    cuda::CpAsync16(values + Shape::At(row, piece), args.values.blocks + at, valid);
  }
}

// Positions and offsets of an item's packed rows.
template <typename T>
struct ItemRows {
  const TileArgs<T>& args;
  const AttentionWork& item;
  std::uint32_t base_position;  // position of packed row 0

  __device__ __forceinline__ ItemRows(const TileArgs<T>& a, const AttentionWork& w)
      : args(a),
        item(w),
        base_position(a.keys.cache_length(w.sequence) + w.base_row - a.row_offsets[w.sequence]) {}

  // Rows beyond the item's count have the position of its last row.
  __device__ __forceinline__ std::uint32_t Position(std::uint32_t row) const {
    const std::uint32_t last = item.num_rows - 1;
    return base_position + (item.first_row + (row < last ? row : last)) / args.group;
  }
  __device__ __forceinline__ std::uint32_t KeysEnd() const {
    return Position(item.num_rows - 1) + 1;
  }
  // Returns the first tile that any row sees. Earlier tiles do not affect results.
  __device__ __forceinline__ std::uint32_t FirstTile() const {
    return args.rules.First(Position(0)) / kKvTile;
  }
  __device__ __forceinline__ std::uint32_t Head(std::uint32_t row) const {
    return item.kv_head * args.group + (item.first_row + row) % args.group;
  }
  // Returns the sink of a row's head, or null.
  __device__ __forceinline__ const float* Sink(std::uint32_t row) const {
    return args.rules.sinks == nullptr ? nullptr : args.rules.sinks + Head(row);
  }
  // Returns the offset in q or out of the head's first column. REQUIRES: row < num_rows.
  __device__ __forceinline__ std::int64_t Offset(std::uint32_t row, std::int64_t stride) const {
    const std::uint32_t packed = item.first_row + row;
    return (std::int64_t{item.base_row} + packed / args.group) * stride +
           std::int64_t{Head(row)} * args.keys.head_size();
  }
};

// True if decode multiplies tiles in bf16 (bf16 pages), false if in f16 (one-byte pages).
template <typename T>
inline constexpr bool kMultiplyBF16 = std::is_same_v<T, BF16>;

template <bool kBF16>
__device__ __forceinline__ std::uint32_t Pack(float low, float high) {
  if constexpr (kBF16) {
    return cuda::PackBF16(low, high);
  } else {
    return cuda::PackF16(low, high);
  }
}

template <bool kBF16>
__device__ __forceinline__ void Mma(float (&d)[4], const std::uint32_t (&a)[4],
                                    const std::uint32_t (&b)[2]) {
  if constexpr (kBF16) {
    cuda::MmaBF16(d, a, b);
  } else {
    cuda::MmaF16(d, a, b);
  }
}

// Converts two bf16 columns of a query to the operand type. f16 saturates at its largest value.
template <bool kBF16>
__device__ __forceinline__ std::uint32_t QueryPair(std::uint32_t pair) {
  if constexpr (kBF16) {
    return pair;
  } else {
    constexpr float kLargest = 65504.0f;
    const float2 x = cuda::UnpackBF16(pair);
    return cuda::PackF16(cuda::Max(cuda::Min(x.x, kLargest), -kLargest),
                         cuda::Max(cuda::Min(x.y, kLargest), -kLargest));
  }
}

// States of kDecodeRows rows, distributed over a block of 128 threads. Thread t has row t % 8 and
// columns t / 8 + 16 j. Spans are reduced into a group in order, then groups of four spans into the
// state of the row.
template <std::uint32_t kColumns>
struct RowReduction {
  static constexpr std::uint32_t kThreads = 128;
  static constexpr std::uint32_t kPerThread = kColumns * kDecodeRows / kThreads;

  State group;
  State row;
  float group_values[kPerThread];
  float row_values[kPerThread];

  __device__ __forceinline__ void Clear() {
    group = State();
    row = State();
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      group_values[j] = 0;
      row_values[j] = 0;
    }
  }
  __device__ __forceinline__ void Add(const State& state, const float (&values)[kPerThread]) {
    const Reduce reduce = ReduceState(&group, state);
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      group_values[j] = ReduceValue(reduce, group_values[j], values[j]);
    }
  }
  __device__ __forceinline__ void EndGroup() {
    const Reduce reduce = ReduceState(&row, group);
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      row_values[j] = ReduceValue(reduce, row_values[j], group_values[j]);
      group_values[j] = 0;
    }
    group = State();
  }
  // Writes the row's output. `out` points to the head's first column. `sink` points to the head's
  // sink; null: no sink.
  __device__ __forceinline__ void Write(BF16* out, std::uint32_t head_size,
                                        const float* sink) const {
    const State state = AddSink(row, sink);
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      const std::uint32_t column = cuda::ThreadIndex() / kDecodeRows + 16 * j;
      if (column < head_size) out[column] = FromFloat<BF16>(FinishValue(state, row_values[j]));
    }
  }
};

}  // namespace quire::kernels::attention
