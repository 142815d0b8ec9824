// The vector code of attention on the CPU. K and V of a sequence are read once for each KV head and
// block of query rows. With few query rows (decode), values are widened in registers. With many, a
// tile is transposed and widened once into scratch memory in L2, which all rows and heads of the
// group read (attention_tile-inl.h). A state is not rescaled while its maximum is unchanged,
// because the factor would be 1.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/attention/attention_rows-inl.h"
#include "kernels/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Returns the number of rows of the next block when `left` packed rows remain.
HWY_INLINE std::size_t BlockRows(std::size_t left) {
  std::size_t rows = kMaxBlockRows;
  while (rows > left) rows /= 2;
  return rows;
}

// Stores the queries, multiplied by the score factor, in blocks of [columns][rows]. Columns beyond
// the head are zero.
void PackQueries(const Rows& rows, float* HWY_RESTRICT to) {
  const float factor = rows.params.scale * kLog2E;
  for (std::size_t i = 0; i < rows.packed;) {
    const std::size_t block = BlockRows(rows.packed - i);
    for (std::size_t r = 0; r < block; ++r) {
      const float* const q =
          rows.params.q.f32() + rows.Row(i + r) * rows.params.q_stride + rows.Column(i + r);
      for (std::size_t c = 0; c < rows.columns; ++c) {
        to[c * block + r] = c < rows.head_size ? q[c] * factor : 0.0f;
      }
    }
    to += block * rows.columns;
    i += block;
  }
}

// Scratch memory of one item. internal::AttentionScratchBytes returns its size.
struct Scratch {
  Scratch(const Rows& rows, std::uint32_t kv_heads, float* memory)
      : transposed(memory),
        values(transposed + kTile * rows.columns),
        staging(values + kTile * rows.columns),
        weights(staging + kStrip * rows.columns),
        k_scales(weights + internal::kAttentionBlockRows * kTile),
        v_scales(k_scales + kTile),
        queries(v_scales + kTile),
        reduced(queries + kv_heads * rows.query_floats()),
        span(reduced + kv_heads * rows.total_state_floats()) {}

  float* transposed;  // transposed keys, [strips][words, or columns if widened][16]
  float* values;      // [64][columns], widened
  float* staging;     // [16][columns], copy of a strip that is incomplete or needs padded columns
  float* weights;     // [rows of a block][64]
  float* k_scales;
  float* v_scales;
  float* queries;  // [KV heads][blocks][columns][rows]
  float* reduced;  // [KV heads][packed rows][state floats]
  float* span;     // same layout as reduced
};
static_assert(kMaxBlockRows <= internal::kAttentionBlockRows);

// A loaded tile: transposed keys and pointers to the rows of values. E is the element type of both.
template <typename E>
struct Tile {
  const float* transposed;
  std::size_t strip_floats;
  const E* values[kStrips];
  std::int64_t value_stride;
  TileScales scales;
  std::uint32_t begin;  // position of the tile's first token
};

// For each of kRows rows from `first` on, computes which tokens of the tile at `begin` the row
// sees. `from` and `to` never decrease from one row to the next.
template <std::size_t kRows>
HWY_INLINE void FindVisible(const Rows& rows, std::uint32_t begin, std::size_t first,
                            VisibleRange* seen) {
  const auto in_tile = [begin](std::uint32_t key) {
    return key <= begin ? 0 : std::min<std::size_t>(kTile, key - begin);
  };
  for (std::size_t r = 0; r < kRows; ++r) seen[r] = {0, kTile};
  if (rows.KeysEnd(first) < begin + kTile) {
    for (std::size_t r = 0; r < kRows; ++r) seen[r].to = in_tile(rows.KeysEnd(first + r));
  }
  if (rows.FirstKey(first + kRows - 1) > begin) {
    for (std::size_t r = 0; r < kRows; ++r) seen[r].from = in_tile(rows.FirstKey(first + r));
  }
}

// Adds the values of a tile to the states of a block of rows. Tokens that all rows see are added
// for all rows at once, other tokens row by row. Each row adds its tokens in ascending order and
// skips tokens that it does not see.
template <typename E, std::size_t kRows, typename Fetch>
HWY_INLINE void AddVisibleValues(const Rows& rows, const Tile<E>& tile, const VisibleRange* seen,
                                 const float* p, Fetch& fetch, float* state) {
  const auto add = [&](std::size_t r, std::size_t from, std::size_t to) {
    if (from >= to) return;
    AddValuesOfRow<E>(p + r * kTile, tile.values, rows.columns, tile.value_stride, from, to, fetch,
                      state + r * rows.state_floats);
  };
  const std::size_t from = seen[kRows - 1].from;
  const std::size_t to = seen[0].to;
  if (from >= to) {
    for (std::size_t r = 0; r < kRows; ++r) add(r, seen[r].from, seen[r].to);
    return;
  }
  for (std::size_t r = 0; r + 1 < kRows; ++r) add(r, seen[r].from, from);
  AddValues<E, kRows>(p, tile.values, rows.columns, tile.value_stride, from, to, fetch, state,
                      rows.state_floats);
  for (std::size_t r = 1; r < kRows; ++r) add(r, to, seen[r].to);
}

// Does one online-softmax step for kRows packed rows, starting with row `first`.
template <typename E, bool kScaled, std::size_t kRows, typename Fetch>
HWY_NOINLINE void AttendBlock(const Rows& rows, const Tile<E>& tile, std::size_t first,
                              const float* queries, Fetch& fetch, float* p, float* states) {
  if (rows.KeysEnd(first + kRows - 1) <= tile.begin) return;
  if (rows.FirstKey(first) >= tile.begin + kTile) return;
  VisibleRange seen[kRows];
  FindVisible<kRows>(rows, tile.begin, first, seen);
  constexpr std::size_t kWidth = kBlockWidth<kRows>;
  const std::size_t first_strip = seen[0].from / (kWidth * kStrip) * kWidth;
  for (std::size_t s = first_strip; s * kStrip < seen[kRows - 1].to; s += kWidth) {
    ScoreStrips<E, kRows, kWidth>(queries + first * rows.columns,
                                  tile.transposed + s * tile.strip_floats, tile.strip_floats,
                                  rows.columns, fetch, p + s * kStrip);
  }
  float* const state = states + first * rows.state_floats;
  TileScales scales = tile.scales;
  if (rows.cap != 0) {
    for (std::size_t r = 0; r < kRows; ++r) {
      CapScores<kScaled>(seen[r], scales, rows.cap, p + r * kTile);
    }
    scales.k = nullptr;
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    if (seen[r].from >= seen[r].to) continue;
    SoftmaxTile<kScaled>(seen[r], rows.columns, scales, p + r * kTile,
                         state + r * rows.state_floats);
  }
  AddVisibleValues<E, kRows>(rows, tile, seen, p, fetch, state);
}

template <typename E, bool kScaled, typename Fetch>
void AttendTile(const Rows& rows, const Tile<E>& tile, const float* queries, Fetch& fetch,
                float* weights, float* states) {
  for (std::size_t i = 0; i < rows.packed;) {
    const std::size_t block = BlockRows(rows.packed - i);
    if constexpr (kMaxBlockRows >= 8) {
      if (block == 8) {
        AttendBlock<E, kScaled, 8>(rows, tile, i, queries, fetch, weights, states);
      }
    }
    if constexpr (kMaxBlockRows >= 4) {
      if (block == 4) {
        AttendBlock<E, kScaled, 4>(rows, tile, i, queries, fetch, weights, states);
      }
      if (block == 2) {
        AttendBlock<E, kScaled, 2>(rows, tile, i, queries, fetch, weights, states);
      }
    }
    if (block == 1) {
      AttendBlock<E, kScaled, 1>(rows, tile, i, queries, fetch, weights, states);
    }
    i += block;
  }
}

// Prefetches tokens into L2, two cache lines per step, because the hardware prefetcher cannot
// predict the addresses of pages. L1 is not used, because the rows of one head are a power of two
// bytes apart and would evict each other. While a tile is computed, the next tile of the item is
// prefetched. While the last tile is computed, the first tile of the next item is prefetched, which
// matters for short sequences.
template <typename T>
class TileFetch {
 public:
  TileFetch(const ItemTokens<T>& item, const ItemTokens<T>& next) : item_(item), next_(next) {}

  // Selects the tile to prefetch while the tile at t is computed.
  void StartAfter(std::uint32_t t) {
    const std::uint32_t after = t + static_cast<std::uint32_t>(kTile);
    if (after < item_.end) {
      Start(item_, after);
    } else if (source_ != &next_) {
      Start(next_, next_.begin);
    }
  }
  HWY_INLINE void Step() {
    if (at_ >= stop_) return;
    // Locality 2 prefetches into L2 but not into L1.
    __builtin_prefetch(at_, 0, 2);
    __builtin_prefetch(at_ + 64, 0, 2);
    at_ += 128;
    if (at_ >= stop_) Next();
  }

 private:
  // Selects the tokens of `source` from t to the end of the tile.
  void Start(const ItemTokens<T>& source, std::uint32_t t) {
    source_ = &source;
    token_ = t;
    end_ = std::min(source.end, (t / internal::kAttentionTile + 1) * internal::kAttentionTile);
    is_fetching_values_ = false;
    Next();
  }
  HWY_NOINLINE void Next() {
    at_ = stop_ = nullptr;
    if (token_ >= end_) {
      if (source_ == &item_ && end_ == item_.end) Start(next_, next_.begin);
      return;
    }
    const Pages<T>& pages = source_->pages;
    const KvView<const T>& view = is_fetching_values_ ? pages.values : pages.keys;
    const T* const row = view.template block_paged_ptr<1>(pages.sequence, token_, pages.first_head);
    // If the item has all KV heads, the rows of a strip are contiguous and are prefetched together.
    const bool is_contiguous = pages.num_heads == view.num_heads() && !pages.is_gathered();
    const std::uint32_t max_tokens = is_contiguous ? kStrip : 1;
    const std::uint32_t tokens = std::min(max_tokens, end_ - token_);
    at_ = reinterpret_cast<const std::uint8_t*>(row);
    stop_ = at_ + std::size_t{tokens} * pages.num_heads * view.head_size() * sizeof(T);
    if (is_fetching_values_) token_ += tokens;
    is_fetching_values_ = !is_fetching_values_;
  }

  const ItemTokens<T>& item_;
  const ItemTokens<T>& next_;
  const ItemTokens<T>* source_ = nullptr;  // item that is being prefetched
  std::uint32_t token_ = 0;
  std::uint32_t end_ = 0;
  bool is_fetching_values_ = false;
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* stop_ = nullptr;
};

// Copies rows [t, t + count), at most 16. Pads rows and columns with zeros.
template <typename T>
HWY_NOINLINE const T* StageStrip(const Pages<T>& pages, const KvView<const T>& view,
                                 std::uint32_t t, std::uint32_t head, std::uint32_t count,
                                 const Rows& rows, float* staging) {
  T* const to = reinterpret_cast<T*>(staging);
  if (count < kStrip || rows.head_size != rows.columns) {
    std::memset(static_cast<void*>(to), 0, kStrip * rows.columns * sizeof(T));
  }
  for (std::uint32_t j = 0; j < count; ++j) {
    std::memcpy(static_cast<void*>(to + j * rows.columns), pages.RowAt(view, t + j, head),
                rows.head_size * sizeof(T));
  }
  return to;
}

// Widens `count` rows of a strip.
template <typename T>
HWY_INLINE void WidenStrip(const T* HWY_RESTRICT from, std::int64_t stride, std::uint32_t count,
                           const Rows& rows, float* HWY_RESTRICT to) {
  for (std::uint32_t j = 0; j < count; ++j) {
    for (std::size_t c = 0; c < rows.columns; c += kLanes) {
      hn::Store(LoadWide(from + j * stride + c), DF(), to + j * rows.columns + c);
    }
  }
}

// Loads tokens [t, min(t + 64, end)) of one head into `tile` and scratch memory, except strips that
// precede token `first`. With kWide, K and V are widened into scratch memory, which saves work if
// many blocks of rows read them.
template <typename T, bool kWide, typename E, typename Fetch>
HWY_INLINE void LoadTile(const Rows& rows, const Pages<T>& pages, std::uint32_t head,
                         std::uint32_t t, std::uint32_t first, std::uint32_t end,
                         const Scratch& scratch, Fetch& fetch, Tile<E>* tile) {
  const std::int64_t stride = pages.keys.row_elements();
  const auto padded = static_cast<std::int64_t>(rows.columns);
  const bool is_staged = rows.head_size != rows.columns || pages.is_gathered();
  tile->begin = t;
  tile->value_stride = kWide || pages.is_gathered() ? padded : stride;
  const std::uint32_t skipped = first > t ? (first - t) / internal::kAttentionStrip : 0;
  for (std::uint32_t s = skipped; s < kStrips && t + s * kStrip < end; ++s) {
    const std::uint32_t at = t + s * internal::kAttentionStrip;
    const std::uint32_t count = std::min<std::uint32_t>(kStrip, end - at);
    float* const transposed = scratch.transposed + s * tile->strip_floats;
    if (count < kStrip || is_staged) {
      TransposeStrip<T, kWide>(
          StageStrip(pages, pages.keys, at, head, count, rows, scratch.staging), padded,
          rows.columns, fetch, transposed);
    } else {
      TransposeStrip<T, kWide>(pages.RowsAt(pages.keys, at, head), stride, rows.columns, fetch,
                               transposed);
    }
    float* const values = scratch.values + s * kStrip * rows.columns;
    if constexpr (kWide) {
      if (is_staged) {
        WidenStrip(StageStrip(pages, pages.values, at, head, count, rows, scratch.staging), padded,
                   count, rows, values);
      } else {
        WidenStrip(pages.RowsAt(pages.values, at, head), stride, count, rows, values);
      }
      tile->values[s] = values;
    } else if (is_staged) {
      tile->values[s] = StageStrip(pages, pages.values, at, head, count, rows, values);
    } else {
      tile->values[s] = pages.RowsAt(pages.values, at, head);
    }
    if constexpr (kQuantizedKv<T>) {
      pages.LoadScales(pages.keys, at, head, count, scratch.k_scales + s * kStrip);
      pages.LoadScales(pages.values, at, head, count, scratch.v_scales + s * kStrip);
    }
  }
}

// Adds the tokens [first, end) of one span to the states of all rows that see them.
template <typename T, bool kWide, typename Fetch>
void AttendSpan(const Rows& rows, const Pages<T>& pages, std::uint32_t first, std::uint32_t end,
                const Scratch& scratch, Fetch& fetch, float* states) {
  using E = std::conditional_t<kWide, float, T>;
  Tile<E> tile;
  tile.transposed = scratch.transposed;
  tile.strip_floats = kStrip * rows.columns * sizeof(E) / sizeof(float);
  tile.scales = {scratch.k_scales, scratch.v_scales};
  for (std::uint32_t t = first / internal::kAttentionTile * internal::kAttentionTile; t < end;
       t += kTile) {
    fetch.StartAfter(t);
    for (std::uint32_t head = 0; head < pages.num_heads; ++head) {
      LoadTile<T, kWide>(rows, pages, head, t, first, end, scratch, fetch, &tile);
      AttendTile<E, kQuantizedKv<T>>(rows, tile, scratch.queries + head * rows.query_floats(),
                                     fetch, scratch.weights,
                                     states + head * rows.total_state_floats());
    }
  }
}

template <typename T>
void Attend(const AttentionParams& params, const internal::AttentionItem& item,
            const internal::AttentionItem* next, float* memory) {
  const ItemTokens<T> tokens = TokensOf<T>(params, item);
  const Pages<T>& pages = tokens.pages;
  // Prefetches the next item only if it has all KV heads. Otherwise the next item's rows have a
  // constant stride, and the hardware prefetcher loads them at lower cost.
  const bool fetches_next = next != nullptr && next->num_kv_heads == pages.keys.num_heads();
  const ItemTokens<T> next_tokens = fetches_next ? TokensOf<T>(params, *next) : ItemTokens<T>();
  NoFetch no_fetch;
  TileFetch<T> fetch(tokens, next_tokens);
  const Rows rows(params, item, KvShapeOf(*params.keys), pages.keys.cache_length(item.sequence));
  const Scratch scratch(rows, item.num_kv_heads, memory);
  for (std::uint32_t head = 0; head < item.num_kv_heads; ++head) {
    PackQueries(rows.OfHead(head), scratch.queries + head * rows.query_floats());
  }
  // With at most two blocks of rows, widening twice in registers is cheaper than writing and
  // reading widened copies.
  const bool is_widened = rows.packed > 2 * kMaxBlockRows || rows.head_size != rows.columns;
  const std::size_t num_states = item.num_kv_heads * rows.packed;
  for (std::uint32_t span = item.span_begin; span < item.span_end; ++span) {
    float* const states = item.partial != nullptr
                              ? item.partial + (span - item.span_begin) * item.partial_stride
                          : span == item.span_begin ? scratch.reduced
                                                    : scratch.span;
    for (std::size_t i = 0; i < num_states; ++i) {
      ClearState(states + i * rows.state_floats, rows.columns);
    }
    const std::uint32_t begin = span * internal::kAttentionSpan;
    const std::uint32_t end = std::min(tokens.end, begin + internal::kAttentionSpan);
    const std::uint32_t first = std::max(tokens.begin, begin);
    if (is_widened) {
      AttendSpan<T, true>(rows, pages, first, end, scratch, no_fetch, states);
    } else {
      AttendSpan<T, false>(rows, pages, first, end, scratch, fetch, states);
    }
    if (states != scratch.span) continue;
    for (std::size_t i = 0; i < num_states; ++i) {
      const std::size_t at = i * rows.state_floats;
      Reduce(scratch.reduced + at, states + at, rows.columns);
    }
  }
  if (item.partial == nullptr) WriteOutput(rows, item.num_kv_heads, scratch.reduced);
}

void AttentionRun(const AttentionParams& params, const internal::AttentionItem& item,
                  const internal::AttentionItem* next, float* scratch) {
  switch (KvDType(*params.keys)) {
    case DType::kF32:
      return Attend<float>(params, item, next, scratch);
    case DType::kBF16:
      return Attend<BF16>(params, item, next, scratch);
    case DType::kF16:
      return Attend<F16>(params, item, next, scratch);
    case DType::kI8:
      return Attend<std::int8_t>(params, item, next, scratch);
    default:
      return Attend<F8E4M3>(params, item, next, scratch);
  }
}

void AttentionReduction(const AttentionParams& params, const internal::AttentionItem& item) {
  const Rows rows(params, item, KvShapeOf(*params.keys), 0);
  for (std::uint32_t span = 1; span < item.span_end - item.span_begin; ++span) {
    for (std::size_t i = 0; i < item.num_kv_heads * rows.packed; ++i) {
      const std::size_t at = i * rows.state_floats;
      Reduce(item.partial + at, item.partial + span * item.partial_stride + at, rows.columns);
    }
  }
  WriteOutput(rows, item.num_kv_heads, item.partial);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(AttentionRun);
HWY_EXPORT(AttentionReduction);

namespace internal {

void AttentionSimd(const AttentionParams& params, const AttentionItem& item,
                   const AttentionItem* next, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionRun)(params, item, next, reinterpret_cast<float*>(scratch));
}

void AttentionReductionSimd(const AttentionParams& params, const AttentionItem& item) {
  HWY_DYNAMIC_DISPATCH(AttentionReduction)(params, item);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
