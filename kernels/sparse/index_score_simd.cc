// A tile of 64 keys is transposed once and used for up to 8 rows, with one key per lane.
// ScoreStrips multiplies several heads of a row at once, so their products share the keys in
// registers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/sparse/index_score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/index_score_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {
namespace {

// Scratch memory of one item; its size is IndexScoreThreadBytes.
struct IndexScratch {
  IndexScratch(std::size_t columns, float* memory)
      : transposed(memory),
        staging(transposed + kTile * columns),
        products(staging + kStrip * columns),
        scores(products + internal::kAttentionBlockRows * kTile),
        queries(scores + kTile) {}

  float* transposed;  // [strips][columns][16]
  float* staging;     // [16][columns], copy of a strip whose columns need padding
  float* products;    // [heads of a block][64]
  float* scores;      // [64]
  float* queries;     // [rows][blocks of heads][columns][heads of a block]
};

HWY_INLINE std::size_t BlockHeads(std::size_t left) {
  std::size_t heads = kMaxBlockRows;
  while (heads > left) heads /= 2;
  return heads;
}

// Stores the queries of one row, multiplied by the scale, in blocks of [columns][heads]. Columns
// beyond the size are zero.
void PackIndexQueries(const IndexScoreParams& params, std::size_t size, std::size_t columns,
                      const float* q, float* HWY_RESTRICT to) {
  for (std::size_t i = 0; i < params.num_heads;) {
    const std::size_t block = BlockHeads(params.num_heads - i);
    for (std::size_t h = 0; h < block; ++h) {
      for (std::size_t c = 0; c < columns; ++c) {
        to[c * block + h] = c < size ? params.scale * q[(i + h) * size + c] : 0.0f;
      }
    }
    to += block * columns;
    i += block;
  }
}

// Adds the terms of kHeads heads to the scores of a tile.
template <std::size_t kHeads>
HWY_NOINLINE void AddHeads(const float* queries, const float* weights, std::size_t columns,
                           const IndexScratch& scratch) {
  const DF d;
  NoFetch no_fetch;
  constexpr std::size_t kWidth = kBlockWidth<kHeads>;
  for (std::size_t s = 0; s < kStrips; s += kWidth) {
    ScoreStrips<float, kHeads, kWidth>(queries, scratch.transposed + s * kStrip * columns,
                                       kStrip * columns, columns, no_fetch,
                                       scratch.products + s * kStrip);
  }
  for (std::size_t j = 0; j < kTile; j += kLanes) {
    VF sum = hn::Load(d, scratch.scores + j);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const VF product = hn::Load(d, scratch.products + h * kTile + j);
      // The comparison keeps NaN.
      const VF positive = hn::IfThenElse(hn::Lt(product, hn::Zero(d)), hn::Zero(d), product);
      sum = hn::MulAdd(hn::Set(d, weights[h]), positive, sum);
    }
    hn::Store(sum, d, scratch.scores + j);
  }
}

void ScoreTile(const IndexScoreParams& params, std::size_t columns, const float* queries,
               const float* weights, const IndexScratch& scratch) {
  std::fill(scratch.scores, scratch.scores + kTile, 0.0f);
  for (std::size_t i = 0; i < params.num_heads;) {
    const std::size_t block = BlockHeads(params.num_heads - i);
    if constexpr (kMaxBlockRows >= 8) {
      if (block == 8) AddHeads<8>(queries, weights + i, columns, scratch);
    }
    if constexpr (kMaxBlockRows >= 4) {
      if (block == 4) AddHeads<4>(queries, weights + i, columns, scratch);
      if (block == 2) AddHeads<2>(queries, weights + i, columns, scratch);
    }
    if (block == 1) AddHeads<1>(queries, weights + i, columns, scratch);
    queries += block * columns;
    i += block;
  }
}

// Transposes keys [t, end) of a tile. Lanes of keys from `end` on are undefined and are not used.
template <typename T>
void TransposeTile(const KvView<const T>& keys, std::uint32_t sequence, std::uint32_t t,
                   std::uint32_t end, std::size_t columns, const IndexScratch& scratch) {
  NoFetch no_fetch;
  const std::size_t size = keys.head_size();
  for (std::uint32_t s = 0; s < kStrips && t + s * kStrip < end; ++s) {
    const T* rows =
        keys.template block_paged_ptr<kStrip>(sequence, t + s * internal::kAttentionStrip, 0);
    std::int64_t stride = keys.row_elements();
    if (size != columns) {
      T* const to = reinterpret_cast<T*>(scratch.staging);
      std::memset(static_cast<void*>(to), 0, kStrip * columns * sizeof(T));
      for (std::size_t j = 0; j < kStrip; ++j) {
        std::memcpy(static_cast<void*>(to + j * columns),
                    rows + static_cast<std::int64_t>(j) * stride, size * sizeof(T));
      }
      rows = to;
      stride = static_cast<std::int64_t>(columns);
    }
    TransposeStrip<T, true>(rows, stride, columns, no_fetch,
                            scratch.transposed + s * kStrip * columns);
  }
}

template <typename T>
void ScoreItem(const IndexScoreParams& params, const internal::IndexItem& item, float* memory) {
  const KvView<const T> keys = std::get<KvView<T>>(*params.keys);
  const std::size_t size = keys.head_size();
  const std::size_t columns = internal::PaddedColumns(keys.head_size());
  const std::size_t row_floats = params.num_heads * columns;
  const IndexScratch scratch(columns, memory);
  for (std::size_t r = 0; r < item.num_rows; ++r) {
    PackIndexQueries(params, size, columns,
                     params.q + (item.row_begin + r) * params.num_heads * size,
                     scratch.queries + r * row_floats);
  }
  // Number of keys that the item's first row sees.
  const std::uint32_t first_keys =
      keys.cache_length(item.sequence) + item.row_begin - params.row_offsets[item.sequence] + 1;
  const std::uint32_t end =
      std::min(item.key_begin + internal::kIndexSpan, first_keys + item.num_rows - 1);
  for (std::uint32_t t = item.key_begin; t < end; t += kTile) {
    TransposeTile<T>(keys, item.sequence, t, end, columns, scratch);
    for (std::uint32_t r = 0; r < item.num_rows; ++r) {
      if (first_keys + r <= t) continue;
      const std::size_t m = item.row_begin + r;
      ScoreTile(params, columns, scratch.queries + r * row_floats,
                params.weights + m * params.num_heads, scratch);
      std::copy_n(scratch.scores, kTile,
                  params.scores +
                      static_cast<std::int64_t>(m - params.row_begin) * params.score_stride + t);
    }
  }
}

}  // namespace

void IndexScoreRun(const IndexScoreParams& params, const internal::IndexItem& item,
                   float* scratch) {
  if (KvDType(*params.keys) == DType::kF32) return ScoreItem<float>(params, item, scratch);
  ScoreItem<BF16>(params, item, scratch);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(IndexScoreRun);

namespace internal {

void IndexScoreSimd(const IndexScoreParams& params, const IndexItem& item, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(IndexScoreRun)(params, item, reinterpret_cast<float*>(scratch));
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
