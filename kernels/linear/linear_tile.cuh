#pragma once

// A tile of Linear on tensor cores, for any number of rows and weights of 16, 8 and 4 bits. The
// kernels of Linear, GroupedLinear and HeadLinear share it.
//
// Weights are operand A of the MMA and tokens are operand B. A batch of one row then wastes seven
// columns of B instead of fifteen rows of A, and every batch has the same reduction order
// (linear_reduction.h).
//
// A block of 8 warps computes 128 features x kTokens rows. cp.async fills a ring of stages of 64
// inputs each. Copies of the first stages of weights start before the wait for the previous kernel.
// bf16 tiles are swizzled by 16-byte chunks and read with ldmatrix. Weights of 8 and 4 bits are
// stored in fragment order and converted to bf16 in registers, without loss. Zero points, which are
// 0 to 255 for 8 bits and 0 to 128 for 4 bits, are subtracted first.
//
// With few rows each sub-range of K has a separate block. The last block of an output tile to
// finish adds the sums in index order. With more rows a block computes all sub-ranges and adds them
// in the same order.
//
// With a gate, a tile has 64 features of the first half of the matrix and the 64 features that they
// gate. The block can therefore store the gated product. This saves a launch, and 6 bytes of memory
// traffic per element. Sums do not depend on the tile that a feature belongs to, and the layout of
// the matrix is the same as without a gate.
//
// Swapped operands are from Marlin and TensorRT-LLM. Weights packed in fragment order are from
// Marlin and Machete. The second accumulator is from DeepGEMM. Adding in the last block is from
// CUDA's sample threadFenceReduction.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/elementwise/gated_product.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_codes.cuh"
#include "kernels/linear/linear_reduction.h"

namespace quire::kernels::linear_tile {

using cuda::kLinearTileK;
using cuda::kLinearTileN;

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
inline constexpr std::uint32_t kRowBytes = kLinearTileK * 2;  // row of a bf16 tile
inline constexpr std::uint32_t kChunk = 16;
inline constexpr std::uint32_t kSteps = kLinearTileK / 16;
inline constexpr std::uint32_t kHalfTile = kLinearTileN / 2;  // features
// Number of rows that a block copies at a time. It is a multiple of 8, after which the swizzle
// repeats.
inline constexpr std::uint32_t kRowTilePass = kThreads / 8;
// Floats between tokens in the output tile. It is 4 more than a multiple of 32, so that a warp
// writes its fragments to 32 different banks.
inline constexpr std::uint32_t kOutPitch = kLinearTileN + 4;

struct LinearArgs {
  const std::byte* w;
  const std::byte* scales;
  const std::byte* zeros;  // null: none
  const BF16* x;
  const float* bias;
  const float* residual;
  void* y;
  float* partials;          // [output tile][split of the grid][register][thread]
  std::uint32_t* counters;  // [output tile], then one counter for all tiles; 0 between launches
  std::int64_t x_stride;
  std::int64_t residual_stride;
  std::int64_t y_stride;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t num_rows;
  std::uint32_t tiles_per_split;
  std::uint32_t grid_splits;  // blocks along K
  std::uint32_t group;        // inputs that share a scale; 0: one scale per feature
  bool y_is_bf16;
  // With a gate, the first half of tile t has the kHalfTile features from t * kHalfTile on. The
  // second half has the features that they gate. In the matrix, up_distance other features are
  // between the two halves. Without a gate up_distance is 0.
  bool has_gate;
  bool gate_is_silu;  // gate == GateShape{}
  std::uint32_t up_distance;
  std::int64_t up_elements;  // elements of up_distance rows of unquantized weights
  GateShape gate;
};

// Returns the number of features that a tile skips before its feature `feature`.
__device__ __forceinline__ std::uint32_t GapBefore(const LinearArgs& args, std::uint32_t feature) {
  return feature < kHalfTile ? 0 : args.up_distance;
}

// Sizes that depend on the template parameters.
template <WeightFormat kFormat, std::uint32_t kTokens>
struct Shape {
  static constexpr bool kPlain = kFormat == WeightFormat::kPlain;
  static constexpr bool kFourBits =
      kFormat == WeightFormat::kInt4 || kFormat == WeightFormat::kFp4E2M1;
  static constexpr bool kInteger = kFormat == WeightFormat::kInt8 || kFormat == WeightFormat::kInt4;
  // Numbers of warps along features (N) and tokens (M), and of MMA tiles of a warp.
  static constexpr std::uint32_t kWarpsN = kTokens >= 32 ? 4 : 8;
  static constexpr std::uint32_t kWarpsM = kWarps / kWarpsN;
  static constexpr std::uint32_t kTilesN = kLinearTileN / 16 / kWarpsN;
  static constexpr std::uint32_t kTilesM = kTokens / 8 / kWarpsM;
  static constexpr std::uint32_t kBits = kFourBits ? 4 : kPlain ? 16 : 8;
  static constexpr std::uint32_t kWeightBytes = kLinearTileN * kLinearTileK * kBits / 8;
  // Bytes of the scales of one group of inputs, and the maximum number of groups in a K tile. A
  // group of e4m3 weights is at least a tile. Other groups may be half a tile.
  static constexpr std::uint32_t kScaleRow =
      kLinearTileN * (kFormat == WeightFormat::kFp8E4M3 ? 4 : 2);
  static constexpr std::uint32_t kGroups = kFormat == WeightFormat::kFp8E4M3 ? 1 : 2;
  static constexpr std::uint32_t kScaleBytes = kPlain ? 0 : kGroups * kScaleRow;
  static constexpr std::uint32_t kZeroBytes = kInteger ? kGroups * kLinearTileN : 0;
  static constexpr std::uint32_t kTokenBytes = kTokens * kRowBytes;
  // Offset of the tokens in a stage.
  static constexpr std::uint32_t kTokensAt = kWeightBytes + kScaleBytes + kZeroBytes;
  static constexpr std::uint32_t kStageBytes = (kTokensAt + kTokenBytes + 1023) / 1024 * 1024;
  static constexpr std::uint32_t kStages = kTokens == 128 ? 3 : kTokens >= 32 ? 4 : 5;
  static constexpr std::uint32_t kOutBytes = kTokens * kOutPitch * 4;
  static constexpr std::uint32_t kSharedBytes =
      std::max(kStages * kStageBytes, kOutBytes) + cuda::kSharedAlignment;
  // The limit per block on compute capability 8.6 and 8.9, the smallest of all supported GPUs.
  static_assert(kSharedBytes <= 99 * 1024);
  using Sums = float[kTilesN][kTilesM][4];
};

// The output tile and the range of K that this block computes.
struct Work {
  std::uint32_t feature_tile;
  std::uint32_t split;  // index of the sub-range if grid_splits > 1
  std::uint32_t n0;
  std::uint32_t m0;
  std::uint32_t tile_begin;
  std::uint32_t tile_end;
};

template <std::uint32_t kTokens>
__device__ __forceinline__ Work WorkOf(const LinearArgs& args) {
  Work work;
  work.feature_tile = cuda::BlockX() / args.grid_splits;
  work.split = cuda::BlockX() % args.grid_splits;
  work.n0 = work.feature_tile * (args.has_gate ? kHalfTile : kLinearTileN);
  work.m0 = cuda::BlockY() * kTokens;
  const std::uint32_t tiles = (args.k + kLinearTileK - 1) / kLinearTileK;
  const std::uint32_t each = args.grid_splits == 1 ? tiles : args.tiles_per_split;
  work.tile_begin = work.split * each;
  work.tile_end = work.tile_begin + each < tiles ? work.tile_begin + each : tiles;
  return work;
}

// Returns the offset of 16-byte chunk `chunk` of `row` in a bf16 tile.
__device__ __forceinline__ std::uint32_t Swizzled(std::uint32_t row, std::uint32_t chunk) {
  return row * kRowBytes + (chunk ^ (row % 8)) * kChunk;
}

// Copies rows of a bf16 matrix, one K tile after the other, with zeros beyond the matrix. The
// constructor computes the addresses that this thread reads.
template <std::uint32_t kRows, std::uint32_t kGapAt>
class RowTileCopier {
 public:
  // Copies rows [first, rows), starting with K tile `tile`. Skips `gap` elements before row kGapAt
  // of a tile.
  __device__ __forceinline__ RowTileCopier(const BF16* from, std::int64_t stride,
                                           std::uint32_t first, std::uint32_t rows,
                                           std::uint32_t tile, std::uint32_t k,
                                           std::int64_t gap = 0)
      : from_(from),
        stride_(stride),
        gap_(gap),
        rows_(rows - first),
        input_(tile * kLinearTileK + cuda::ThreadIndex() % 8 * 8),
        end_(kPasses > 1 || Row() < rows - first ? k : 0) {
    source_ = from + (first + Row()) * stride + input_;
  }

  // Replaces row r by row row_of(r), for the rows from `first` on.
  template <typename RowOf>
  __device__ __forceinline__ void Rename(std::uint32_t first, const RowOf& row_of) {
    static_assert(kPasses <= 2 && kGapAt == kRowsPerPass);
    const std::int64_t own = row_of(first + Row());
    source_ = from_ + own * stride_ + input_;
    if (kPasses == 2) gap_ = (row_of(first + kGapAt + Row()) - own - kGapAt) * stride_;
  }

  __device__ __forceinline__ void CopyNext(std::byte* to) {
    if (kRows >= kRowsPerPass || Row() < kRows) {
      to += Swizzled(Row(), cuda::ThreadIndex() % 8);
      const bool has_inputs = input_ < end_;
      const std::uint32_t left = has_inputs ? rows_ : 0;
      const BF16* source = source_;
#pragma unroll
      for (std::uint32_t pass = 0; pass < kPasses; ++pass) {
        const bool inside = kPasses == 1 ? has_inputs : Row() + pass * kRowsPerPass < left;
        cuda::CpAsync16(to + pass * kRowsPerPass * kRowBytes, inside ? source : from_, inside);
        source += kRowsPerPass * stride_;
        if ((pass + 1) * kRowsPerPass == kGapAt) source += gap_;
      }
    }
    input_ += kLinearTileK;
    source_ += kLinearTileK;
  }

 private:
  static constexpr std::uint32_t kRowsPerPass = kRowTilePass;
  static constexpr std::uint32_t kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  __device__ __forceinline__ static std::uint32_t Row() {
    return cuda::ThreadIndex() / 8;
  }

  const BF16* from_;
  const BF16* source_;  // this thread's first row in the next tile
  std::int64_t stride_;
  std::int64_t gap_;
  std::uint32_t rows_;
  std::uint32_t input_;
  std::uint32_t end_;  // end of the inputs; 0 if the row is beyond the matrix
};

// Copies quantized weights, one K tile after the other.
template <std::uint32_t kBytes>
class CodeTileCopier {
 public:
  // `from` points to this warp's block of 16 features in the first tile.
  __device__ __forceinline__ explicit CodeTileCopier(const std::byte* from)
      : source_(from + cuda::Lane() * kChunk) {}

  __device__ __forceinline__ void CopyNext(std::byte* to) {
    to += cuda::ThreadIndex() * kChunk;
#pragma unroll
    for (std::uint32_t i = 0; i < kBytes; i += kThreads * kChunk) {
      cuda::CpAsync16(to + i, source_ + i);
    }
    source_ += kBytes;
  }

 private:
  static_assert(kBytes % (kThreads * kChunk) == 0);
  const std::byte* source_;  // this thread's first chunk of the next tile
};
static_assert(kWarps * 16 == kLinearTileN);  // a warp copies 16 features

// Copies the scales of the groups of inputs in a tile, then their zero points.
template <typename S>
__device__ __forceinline__ void CopyScales(std::byte* to, const LinearArgs& args, const Work& work,
                                           std::uint32_t tile) {
  constexpr std::uint32_t kScaleChunks = S::kScaleRow / kChunk;
  constexpr std::uint32_t kZeroChunks = kLinearTileN / kChunk;
  const std::uint32_t groups = (args.k + args.group - 1) / args.group;
  const std::int64_t padded_n =
      static_cast<std::int64_t>((args.n + kLinearTileN - 1) / kLinearTileN) * kLinearTileN;
  // Inputs beyond K are zeros. They use the scales of the last group.
  const auto group_of = [&](std::uint32_t part) {
    const std::uint32_t group = (tile * kLinearTileK + part * (kLinearTileK / 2)) / args.group;
    return group < groups ? group : groups - 1;
  };
  const std::uint32_t chunk = cuda::ThreadIndex();
  if (chunk < S::kGroups * kScaleChunks) {
    const std::int64_t first =
        group_of(chunk / kScaleChunks) * padded_n + work.n0 +
        GapBefore(args, chunk % kScaleChunks * (kLinearTileN / kScaleChunks));
    cuda::CpAsync16(to + chunk * kChunk, args.scales + first * (S::kScaleRow / kLinearTileN) +
                                             chunk % kScaleChunks * kChunk);
  }
  if (S::kInteger && args.zeros != nullptr && chunk < S::kGroups * kZeroChunks) {
    cuda::CpAsync16(to + S::kScaleBytes + chunk * kChunk,
                    args.zeros + group_of(chunk / kZeroChunks) * padded_n + work.n0 +
                        GapBefore(args, chunk % kZeroChunks * kChunk) +
                        chunk % kZeroChunks * kChunk);
  }
}

// Copies weights, one K tile after the other. `tile` is the index of the K tile in the matrix.
template <WeightFormat kFormat, std::uint32_t kTokens>
class WeightTileCopier {
  using S = Shape<kFormat, kTokens>;
  using Tiles = std::conditional_t<S::kPlain, RowTileCopier<kLinearTileN, kHalfTile>,
                                   CodeTileCopier<S::kWeightBytes>>;

 public:
  __device__ __forceinline__ WeightTileCopier(const LinearArgs& args, const Work& work)
      : tiles_(First(args, work)) {}

  __device__ __forceinline__ void CopyNext(std::byte* stage, const LinearArgs& args,
                                           const Work& work, std::uint32_t tile) {
    tiles_.CopyNext(stage);
    if constexpr (!S::kPlain) {
      if (args.group != 0) CopyScales<S>(stage + S::kWeightBytes, args, work, tile);
    }
  }

 private:
  __device__ __forceinline__ static Tiles First(const LinearArgs& args, const Work& work) {
    if constexpr (S::kPlain) {
      return Tiles(reinterpret_cast<const BF16*>(args.w), args.k, work.n0, args.n, work.tile_begin,
                   args.k, args.up_elements);
    } else {
      const std::uint32_t tiles = (args.k + kLinearTileK - 1) / kLinearTileK;
      const std::uint32_t in_tile = cuda::Warp() * 16;
      const std::uint32_t feature = work.n0 + in_tile + GapBefore(args, in_tile);
      const std::int64_t index =
          static_cast<std::int64_t>(feature / kLinearTileN) * tiles + work.tile_begin;
      return Tiles(args.w + index * S::kWeightBytes +
                   feature % kLinearTileN / 16 * cuda::kWarpSize * kChunk);
    }
  }

  Tiles tiles_;
};

// Adds weights x tokens of MMA step `step` to `sums`.
template <typename S>
__device__ __forceinline__ void MultiplyStep(typename S::Sums& sums,
                                             const std::uint32_t (&a)[S::kTilesN][4],
                                             const std::byte* tokens, std::uint32_t step,
                                             std::uint32_t warp) {
  const std::uint32_t lane = cuda::Lane();
  const std::uint32_t first = warp / S::kWarpsN * (S::kTilesM * 8);
  if constexpr (S::kTilesM == 1) {
    std::uint32_t b[2];
    cuda::LdMatrixX2(b, tokens + Swizzled(first + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
    for (std::uint32_t n = 0; n < S::kTilesN; ++n) cuda::MmaBF16(sums[n][0], a[n], b);
  } else {
#pragma unroll
    for (std::uint32_t m = 0; m < S::kTilesM; m += 2) {
      std::uint32_t r[4];
      cuda::LdMatrixX4(
          r, tokens + Swizzled(first + m * 8 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
      const std::uint32_t b0[2] = {r[0], r[1]};
      const std::uint32_t b1[2] = {r[2], r[3]};
#pragma unroll
      for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
        cuda::MmaBF16(sums[n][m], a[n], b0);
        cuda::MmaBF16(sums[n][m + 1], a[n], b1);
      }
    }
  }
}

// Adds sums * scale_of(feature of the tile) to total, and sets sums to 0.
template <typename S, typename ScaleOf>
__device__ __forceinline__ void Reduce(typename S::Sums& total, typename S::Sums& sums,
                                       std::uint32_t warp, const ScaleOf& scale_of) {
  const std::uint32_t first = warp % S::kWarpsN * (S::kTilesN * 16) + cuda::Lane() / 4;
#pragma unroll
  for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
    const float scales[2] = {scale_of(first + n * 16), scale_of(first + n * 16 + 8)};
#pragma unroll
    for (std::uint32_t m = 0; m < S::kTilesM; ++m) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        total[n][m][i] = cuda::Fma(sums[n][m][i], scales[i / 2], total[n][m][i]);
        sums[n][m][i] = 0;
      }
    }
  }
}

// Values that are subtracted from the integers of the features of a thread. Without zero points
// they are the same in all tiles.
template <WeightFormat kFormat, std::uint32_t kTokens>
using Offsets = std::uint32_t[Shape<kFormat, kTokens>::kTilesN][2];

// Multiplies one K tile. Products of weights with scales per group are added to `scaled`, all
// others to `sums`.
template <WeightFormat kFormat, std::uint32_t kTokens>
__device__ __forceinline__ void MultiplyTile(typename Shape<kFormat, kTokens>::Sums& sums,
                                             typename Shape<kFormat, kTokens>::Sums& scaled,
                                             Offsets<kFormat, kTokens>& offsets,
                                             const std::byte* stage, const LinearArgs& args,
                                             std::uint32_t warp) {
  using S = Shape<kFormat, kTokens>;
  const std::byte* const tokens = stage + S::kTokensAt;
  const std::uint32_t lane = cuda::Lane();
  const std::uint32_t first = warp % S::kWarpsN * S::kTilesN;  // block of 16 features
  std::uint32_t a[S::kTilesN][4];
  if constexpr (S::kPlain) {
    // The largest tile is not fully unrolled, because fragments that are loaded ahead would not fit
    // in registers.
    [[maybe_unused]] constexpr std::uint32_t kUnroll = kTokens == 128 ? 2 : kSteps;
#pragma unroll kUnroll
    for (std::uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
      for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
        cuda::LdMatrixX4(a[n],
                         stage + Swizzled((first + n) * 16 + lane % 16, step * 2 + lane / 16));
      }
      MultiplyStep<S>(sums, a, tokens, step, warp);
    }
  } else {
    constexpr std::uint32_t kStepsPerLoad = S::kFourBits ? 4 : 2;
    const std::byte* const scales = stage + S::kWeightBytes;
    const auto* const packed = reinterpret_cast<const uint4*>(stage);
#pragma unroll
    for (std::uint32_t load = 0; load < kSteps / kStepsPerLoad; ++load) {
      uint4 raw[S::kTilesN];
#pragma unroll
      for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
        raw[n] = packed[(load * 8 + first + n) * 32 + lane];
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kStepsPerLoad; ++i) {
        const std::uint32_t step = load * kStepsPerLoad + i;
        if constexpr (S::kInteger) {
          if (step % 2 == 0 && args.zeros != nullptr) {
            cuda::LoadOffsets<kFormat>(offsets, scales + S::kScaleBytes + step / 2 * kLinearTileN,
                                       first * 16);
          }
        }
#pragma unroll
        for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
          if constexpr (S::kFourBits) {
            const std::uint32_t word = i == 0   ? raw[n].x
                                       : i == 1 ? raw[n].y
                                       : i == 2 ? raw[n].z
                                                : raw[n].w;
            cuda::Dequantize<kFormat>(a[n], word, 0, offsets[n]);
          } else if (i == 0) {
            cuda::Dequantize<kFormat>(a[n], raw[n].x, raw[n].y, offsets[n]);
          } else {
            cuda::Dequantize<kFormat>(a[n], raw[n].z, raw[n].w, offsets[n]);
          }
        }
        MultiplyStep<S>(sums, a, tokens, step, warp);
        // Scales are applied after each half tile for groups of 32 inputs, otherwise after each
        // tile.
        if (args.group != 0 && (step == 3 || (step == 1 && args.group == kLinearTileK / 2))) {
          const std::byte* const own = scales + step / 2 % S::kGroups * S::kScaleRow;
          Reduce<S>(scaled, sums, warp, [own](std::uint32_t feature) {
            return cuda::GroupScale<kFormat>(own, feature);
          });
        }
      }
    }
  }
}

// Adds the sums of all sub-ranges of this output tile in index order, in the block that finishes
// last. Returns false in the other blocks. sum_of(v) returns a reference to sum v of the kValues
// sums of a thread. All threads of the block must call this function, but only the first kThreads
// of them have sums. `flag` is in shared memory.
template <std::uint32_t kValues, typename SumOf>
__device__ __forceinline__ bool AddPartials(const SumOf& sum_of, bool has_sums,
                                            const LinearArgs& args, const Work& work,
                                            std::uint32_t* flag) {
  const std::uint32_t output =
      cuda::BlockY() * (cuda::GridX() / args.grid_splits) + work.feature_tile;
  float* const tile =
      args.partials + static_cast<std::int64_t>(output) * args.grid_splits * kValues * kThreads;
  if (has_sums) {
    float* const own = tile + work.split * kValues * kThreads + cuda::ThreadIndex();
#pragma unroll
    for (std::uint32_t v = 0; v < kValues; ++v) own[v * kThreads] = sum_of(v);
  }
  if (!last_block::ArrivesLast(args.counters + output, args.grid_splits, flag)) return false;
  for (std::uint32_t split = 0; has_sums && split < args.grid_splits; ++split) {
    const float* const from = tile + split * kValues * kThreads + cuda::ThreadIndex();
#pragma unroll
    for (std::uint32_t v = 0; v < kValues; ++v) {
      float& sum = sum_of(v);
      const float part = cuda::LoadAtL2(from + v * kThreads);
      sum = split == 0 ? part : cuda::Add(sum, part);
    }
  }
  return true;
}

// kWidth consecutive floats.
template <std::uint32_t kWidth>
struct Values {
  float at[kWidth];

  __device__ __forceinline__ static Values Load(const float* from) {
    if constexpr (kWidth == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {{v.x, v.y, v.z, v.w}};
    } else {
      return {{*from}};
    }
  }
  __device__ __forceinline__ void Add(const Values& other) {
#pragma unroll
    for (std::uint32_t i = 0; i < kWidth; ++i) at[i] = cuda::Add(at[i], other.at[i]);
  }
  __device__ __forceinline__ void Store(float* to) const {
    if constexpr (kWidth == 4) {
      *reinterpret_cast<float4*>(to) = {at[0], at[1], at[2], at[3]};
    } else {
      *to = at[0];
    }
  }
  __device__ __forceinline__ void Store(BF16* to) const {
    if constexpr (kWidth == 4) {
      *reinterpret_cast<uint2*>(to) = {cuda::PackBF16(at[0], at[1]), cuda::PackBF16(at[2], at[3])};
    } else {
      *to = BF16{static_cast<std::uint16_t>(cuda::PackBF16(at[0], 0.0f))};
    }
  }
};

// Stores the gated products of a tile of sums as rows of y, kWidth features per thread.
template <std::uint32_t kTokens, std::uint32_t kWidth>
__device__ __forceinline__ void StoreGated(const float* tile, const LinearArgs& args,
                                           const Work& work) {
  using V = Values<kWidth>;
  constexpr std::uint32_t kThreadsOfToken = kHalfTile / kWidth;
  const std::uint32_t column = cuda::ThreadIndex() % kThreadsOfToken * kWidth;
  const std::uint32_t feature = work.n0 + column;
  V gate_bias = {};
  V up_bias = {};
  if (args.bias != nullptr) {
#pragma unroll
    for (std::uint32_t i = 0; i < kWidth; ++i) {
      gate_bias.at[i] = args.bias[feature + i];
      up_bias.at[i] = args.bias[feature + kHalfTile + args.up_distance + i];
    }
  }
  const std::uint32_t end = args.num_rows - work.m0 < kTokens ? args.num_rows - work.m0 : kTokens;
#pragma unroll 2
  for (std::uint32_t token = cuda::ThreadIndex() / kThreadsOfToken; token < end;
       token += kThreads / kThreadsOfToken) {
    V gate = V::Load(tile + token * kOutPitch + column);
    V up = V::Load(tile + token * kOutPitch + kHalfTile + column);
    if (args.bias != nullptr) {
      gate.Add(gate_bias);
      up.Add(up_bias);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kWidth; ++i) {
      const float g = BF16::FromFloat(gate.at[i]).ToFloat();
      const float u = BF16::FromFloat(up.at[i]).ToFloat();
      gate.at[i] =
          args.gate_is_silu ? cuda::SiluProduct()(g, u) : cuda::ShapedProduct{args.gate}(g, u);
    }
    gate.Store(static_cast<BF16*>(args.y) + (std::int64_t{work.m0} + token) * args.y_stride +
               feature);
  }
}

// Stores a tile of sums as rows of y, kWidth features per thread.
template <std::uint32_t kTokens, std::uint32_t kWidth>
__device__ __forceinline__ void StorePlain(const float* tile, const LinearArgs& args,
                                           const Work& work) {
  using V = Values<kWidth>;
  constexpr std::uint32_t kThreadsOfToken = kLinearTileN / kWidth;
  const std::uint32_t column = cuda::ThreadIndex() % kThreadsOfToken * kWidth;
  const std::uint32_t feature = work.n0 + column;
  if (feature >= args.n) return;
  V bias = {};
  if (args.bias != nullptr) {
#pragma unroll
    for (std::uint32_t i = 0; i < kWidth; ++i) bias.at[i] = args.bias[feature + i];
  }
  const std::uint32_t end = args.num_rows - work.m0 < kTokens ? args.num_rows - work.m0 : kTokens;
#pragma unroll 4
  for (std::uint32_t token = cuda::ThreadIndex() / kThreadsOfToken; token < end;
       token += kThreads / kThreadsOfToken) {
    const std::int64_t row = std::int64_t{work.m0} + token;
    V y = V::Load(tile + token * kOutPitch + column);
    if (args.bias != nullptr) y.Add(bias);
    if (args.residual != nullptr) {
      y.Add(V::Load(args.residual + row * args.residual_stride + feature));
    }
    if (args.y_is_bf16) {
      y.Store(static_cast<BF16*>(args.y) + row * args.y_stride + feature);
    } else {
      y.Store(static_cast<float*>(args.y) + row * args.y_stride + feature);
    }
  }
}

// True if rows of y and of the residual can be accessed four elements at a time.
__device__ __forceinline__ bool HasWideRows(const LinearArgs& args) {
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const std::int64_t strides =
      args.y_stride | (args.residual != nullptr ? args.residual_stride : 0);
  return ((args.n | strides) & 3) == 0 && (address(args.y) & (args.y_is_bf16 ? 7 : 15)) == 0 &&
         (address(args.residual) & 15) == 0;
}

// Stores a tile of sums as rows of y. The tile is in shared memory, so that y, bias and residual
// are accessed in whole cache lines. The first kThreads threads of a block call this function.
// REQUIRES: work.m0 < args.num_rows.
template <std::uint32_t kTokens>
__device__ __forceinline__ void StoreRows(const float* tile, const LinearArgs& args,
                                          const Work& work) {
  const bool is_wide = HasWideRows(args);
  if (args.has_gate) {
    is_wide ? StoreGated<kTokens, 4>(tile, args, work) : StoreGated<kTokens, 1>(tile, args, work);
  } else {
    is_wide ? StorePlain<kTokens, 4>(tile, args, work) : StorePlain<kTokens, 1>(tile, args, work);
  }
}

template <WeightFormat kFormat, std::uint32_t kTokens>
__device__ __forceinline__ void Store(const typename Shape<kFormat, kTokens>::Sums& sums,
                                      float* tile, const LinearArgs& args, const Work& work,
                                      std::uint32_t warp) {
  using S = Shape<kFormat, kTokens>;
  const std::uint32_t lane = cuda::Lane();
  const std::uint32_t feature0 = warp % S::kWarpsN * (S::kTilesN * 16) + lane / 4;
  const std::uint32_t token0 = warp / S::kWarpsN * (S::kTilesM * 8) + lane % 4 * 2;
#pragma unroll
  for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
#pragma unroll
    for (std::uint32_t m = 0; m < S::kTilesM; ++m) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        tile[(token0 + m * 8 + i % 2) * kOutPitch + feature0 + n * 16 + i / 2 * 8] = sums[n][m][i];
      }
    }
  }
  cuda::SyncBlock();
  StoreRows<kTokens>(tile, args, work);
}

template <typename S>
__device__ __forceinline__ void Promote(typename S::Sums& total, typename S::Sums& sums,
                                        bool first) {
#pragma unroll
  for (std::uint32_t v = 0; v < S::kTilesN * S::kTilesM * 4; ++v) {
    float& sum = sums[v / 4 / S::kTilesM][v / 4 % S::kTilesM][v % 4];
    float& to = total[v / 4 / S::kTilesM][v / 4 % S::kTilesM][v % 4];
    to = first ? sum : cuda::Add(to, sum);
    sum = 0;
  }
}

// A `row_of` that maps row m of the launch to row m of x.
struct SameRow {};

// Computes the block's work. Returns true in the block that stored the output tile, and false in a
// block whose sums another block adds. kPromote means that a block computes several sub-ranges. Row
// m of the launch is row row_of(m) of x.
template <WeightFormat kFormat, std::uint32_t kTokens, bool kPromote, typename RowOf>
__device__ __forceinline__ bool Multiply(const LinearArgs& args, const Work& work,
                                         const RowOf& row_of) {
  using S = Shape<kFormat, kTokens>;
  std::byte* const shared = cuda::SharedMemory();
  const std::uint32_t warp = cuda::Warp();
  WeightTileCopier<kFormat, kTokens> weights(args, work);
#pragma unroll
  for (std::uint32_t i = 0; i < S::kStages - 1; ++i) {
    const std::uint32_t tile = work.tile_begin + i;
    if (tile < work.tile_end) weights.CopyNext(shared + i * S::kStageBytes, args, work, tile);
  }
  cuda::DependencyWait();
  RowTileCopier<kTokens, kRowTilePass> tokens(args.x, args.x_stride, work.m0, args.num_rows,
                                              work.tile_begin, args.k);
  if constexpr (!std::is_same_v<RowOf, SameRow>) tokens.Rename(work.m0, row_of);
#pragma unroll
  for (std::uint32_t i = 0; i < S::kStages - 1; ++i) {
    if (work.tile_begin + i < work.tile_end) {
      tokens.CopyNext(shared + i * S::kStageBytes + S::kTokensAt);
    }
    cuda::CpAsyncCommit();
  }
  const auto scale_features = [&](typename S::Sums& to, typename S::Sums& from) {
    if (args.group != 0) return;
    const float* const scales = reinterpret_cast<const float*>(args.scales) + work.n0;
    Reduce<S>(to, from, warp, [&args, scales](std::uint32_t feature) {
      return scales[feature + GapBefore(args, feature)];
    });
  };
  typename S::Sums sums = {};
  typename S::Sums scaled = {};  // with quantized weights: scaled sums of a sub-range
  typename S::Sums total = {};   // sums of several sub-ranges
  // Without zero points, half the range is subtracted.
  [[maybe_unused]] Offsets<kFormat, kTokens> offsets;
#pragma unroll
  for (std::uint32_t n = 0; n < S::kTilesN; ++n) {
    offsets[n][0] = offsets[n][1] = cuda::OffsetOf<kFormat>(S::kFourBits ? 8 : 128, 0);
  }
  std::uint32_t at = 0;                                    // offset of the tile's stage
  std::uint32_t free = (S::kStages - 1) * S::kStageBytes;  // offset of the preceding stage
  const std::uint32_t copies_end = work.tile_end - work.tile_begin < S::kStages
                                       ? work.tile_begin
                                       : work.tile_end - (S::kStages - 1);
  for (std::uint32_t tile = work.tile_begin; tile < work.tile_end; ++tile) {
    cuda::CpAsyncWait<S::kStages - 2>();
    cuda::SyncBlock();
    if (tile < copies_end) {
      weights.CopyNext(shared + free, args, work, tile + S::kStages - 1);
      tokens.CopyNext(shared + free + S::kTokensAt);
    }
    cuda::CpAsyncCommit();
    MultiplyTile<kFormat, kTokens>(sums, scaled, offsets, shared + at, args, warp);
    free = at;
    at = at == (S::kStages - 1) * S::kStageBytes ? 0 : at + S::kStageBytes;
    if constexpr (kPromote) {
      const std::uint32_t done = tile + 1;
      if (done % args.tiles_per_split == 0 || done == work.tile_end) {
        if constexpr (!S::kPlain) scale_features(scaled, sums);
        Promote<S>(total, S::kPlain ? sums : scaled, done <= args.tiles_per_split);
      }
    }
  }
  // After this barrier, every thread has finished its last stage, so the output tile can overwrite
  // the ring.
  cuda::CpAsyncWait<0>();
  cuda::SyncBlock();
  if constexpr (!S::kPlain && !kPromote) scale_features(scaled, sums);
  auto& result = kPromote ? total : S::kPlain ? sums : scaled;
  if constexpr (kTokens <= cuda::kLinearSmallRows) {
    const auto sum_of = [&result](std::uint32_t v) -> float& {
      return result[v / 4 / S::kTilesM][v / 4 % S::kTilesM][v % 4];
    };
    if (args.grid_splits > 1 &&
        !AddPartials<S::kTilesN * S::kTilesM * 4>(sum_of, /*has_sums=*/true, args, work,
                                                  reinterpret_cast<std::uint32_t*>(shared))) {
      return false;
    }
    if (args.grid_splits > 1) cuda::SyncBlock();
  }
  Store<kFormat, kTokens>(result, reinterpret_cast<float*>(shared), args, work, warp);
  return true;
}

// Returns the arguments that depend on x and the matrix. The others, such as y and bias, are zero.
inline absl::StatusOr<LinearArgs> ArgsOf(const PackedLinear& weight, ConstFloatPtr x,
                                         std::int64_t x_stride, std::uint32_t num_rows) {
  const auto at = reinterpret_cast<std::uintptr_t>(x.data());
  if (at % kChunk != 0 || (x_stride % 8 != 0 && num_rows > 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear [", weight.n(), ", ", weight.k(), "] has x ", at % kChunk,
                     " bytes after a multiple of 16 with rows ", x_stride,
                     " elements apart, rows must be 16-byte aligned"));
  }
  const bool by_group = weight.format() != WeightFormat::kPlain &&
                        (weight.group() != weight.k() || weight.dtype() != DType::kF32);
  const auto* const scales = static_cast<const std::byte*>(weight.scales());
  LinearArgs args{};
  args.w = static_cast<const std::byte*>(weight.data());
  args.scales = scales;
  if (weight.has_min()) {
    args.zeros = scales + cuda::LinearZerosAt(weight.n(), weight.k(), weight.group());
  }
  args.x = x.as<BF16>();
  args.x_stride = x_stride;
  args.n = weight.n();
  args.k = weight.k();
  args.num_rows = num_rows;
  args.tiles_per_split = cuda::LinearReductionOf(args.n, args.k).tiles_per_split;
  args.grid_splits = 1;
  args.group = by_group ? weight.group() : 0;
  return args;
}

// REQUIRES: with a gate n is a multiple of kLinearTileN.
inline void SetGate(const std::optional<GateShape>& gate, LinearArgs* args) {
  if (!gate) return;
  args->has_gate = true;
  args->gate_is_silu = *gate == GateShape{};
  args->up_distance = args->n / 2 - kHalfTile;
  args->up_elements = std::int64_t{args->up_distance} * args->k;
  args->gate = *gate;
}

inline void UseWorkspace(std::byte* workspace, LinearArgs* args) {
  args->partials = reinterpret_cast<float*>(workspace + cuda::kLinearCounterBytes);
  args->counters = reinterpret_cast<std::uint32_t*>(workspace);
}

// Returns the arguments of Linear. The arguments of the QKV store are separate.
inline absl::StatusOr<LinearArgs> ArgsOf(const CudaContext& context, const LinearParams& params) {
  QUIRE_ASSIGN_OR_RETURN(LinearArgs args,
                         ArgsOf(*params.weight, params.x, params.x_stride, params.num_rows));
  UseWorkspace(context.linear_workspace, &args);
  args.bias = params.bias;
  args.residual = params.residual;
  args.residual_stride = params.residual_stride;
  args.y = params.y.data();
  args.y_stride = params.y_stride;
  args.y_is_bf16 = params.y.dtype() == DType::kBF16;
  SetGate(params.gate, &args);
  return args;
}

}  // namespace quire::kernels::linear_tile
