// Attention with bf16 activations. A span of 512 tokens of one KV head is copied into tiles once
// and multiplied by all packed rows of the item, 32 rows at a time. Keys are transposed as 32-bit
// words of two columns. A row's scores are then contiguous, and its weights are a row of the next
// product. Values are interleaved in pairs of tokens. The copies of a head of 128 columns occupy
// 256 KiB, and the scores and weights of 32 rows 96 KiB. Both fit into L2.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/bf16_attention.h"
#include "kernels/linear/bf16_linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/bf16_attention_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/attention/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {
namespace bf16_attention {

constexpr std::size_t kSpan = internal::kAttentionSpan;
constexpr std::size_t kTileRows = internal::kRowTile;
constexpr std::size_t kBlock = internal::kBlock;  // columns or tokens of one tile product
constexpr std::size_t kTileSize = kTileRows * kBlock;
constexpr std::size_t kSumsSize = kTileRows * kStrip;  // floats of a tile of sums
constexpr std::size_t kGroupRows = internal::kBf16RowTiles * kTileRows;
constexpr std::size_t kValuePanel = kSpan * kStrip;  // elements of 16 columns of a span's values
// Distance in strips from the strip that is copied to the strip that is prefetched.
constexpr std::uint32_t kPrefetchStrips = 4;
static_assert(kStrip == PackedLinear::kPanel);

// Scratch memory of one item. internal::Bf16AttentionScratchBytes returns its size.
struct Memory {
  Memory(const Rows& rows, std::uint32_t kv_heads, std::byte* memory)
      : key_columns(internal::KeyColumns(rows.head_size)),
        head_queries((rows.packed + kTileRows - 1) / kTileRows * kTileRows * key_columns),
        keys(reinterpret_cast<std::uint16_t*>(memory)),
        values(keys + kSpan * key_columns),
        staging(values + kSpan * rows.columns),
        weights(staging + kStrip * key_columns),
        queries(weights + kGroupRows * kSpan),
        scores(reinterpret_cast<float*>(queries + kv_heads * head_queries)),
        sums(scores + kGroupRows * kSpan),
        reduced(sums + kGroupRows * rows.columns),
        span(reduced + kv_heads * rows.total_state_floats()) {}

  std::size_t key_columns;
  std::size_t head_queries;  // elements of all queries of one KV head

  std::uint16_t* keys;     // [strips][key_columns / 2][16 tokens][2]
  std::uint16_t* values;   // [columns / 16][256 pairs of tokens][16 columns][2]
  std::uint16_t* staging;  // [16][key_columns], copy of a strip that needs padding
  std::uint16_t* weights;  // [2][blocks of 32 tokens][16 rows][32]
  std::uint16_t* queries;  // [KV heads][tiles of rows][blocks of 32 columns][16 rows][32]
  float* scores;           // [strips][tiles of rows][16 rows][16 tokens]
  float* sums;             // [columns / 16][tiles of rows][16 rows][16 columns]
  float* reduced;          // [KV heads][packed rows][state floats]
  float* span;             // same layout as reduced
};

HWY_INLINE void StoreUpperHalves(VU words, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, DF> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(words)), d16, to);
}

// Stores the queries of a KV head, multiplied by the score factor. Missing rows and columns are
// zeros.
HWY_INLINE void RoundQueries(const Rows& rows, const Memory& memory, std::uint16_t* to) {
  const DF d;
  const float factor = rows.params.scale * kLog2E;
  for (std::size_t i = 0; i < memory.head_queries / memory.key_columns; ++i) {
    std::uint16_t* const row =
        to + i / kTileRows * kTileRows * memory.key_columns + i % kTileRows * kBlock;
    const auto at = [row](std::size_t c) { return row + c / kBlock * kTileSize + c % kBlock; };
    std::size_t c = 0;
    if (i < rows.packed) {
      const float* const q =
          rows.params.q.f32() + rows.Row(i) * rows.params.q_stride + rows.Column(i);
      for (; c + kLanes <= rows.head_size; c += kLanes) {
        const VF scaled = hn::Mul(hn::LoadU(d, q + c), hn::Set(d, factor));
        StoreUpperHalves(RoundedBF16(scaled), at(c));
      }
      for (; c < rows.head_size; ++c) *at(c) = BF16::FromFloat(q[c] * factor).bits;
    }
    for (; c < memory.key_columns; ++c) *at(c) = 0;
  }
}

// Stores 16 tokens of values as pairs of tokens. `to` points to the first pair in the first panel
// of 16 columns.
template <typename Fetch>
HWY_INLINE void InterleaveStrip(const BF16* HWY_RESTRICT rows, std::int64_t stride,
                                std::size_t columns, Fetch& fetch, std::uint32_t* HWY_RESTRICT to) {
  for (std::size_t pair = 0; pair < kStrip / 2; ++pair) {
    fetch.Step();
    const BF16* const even = rows + static_cast<std::int64_t>(2 * pair) * stride;
    const BF16* const odd = even + stride;
    std::uint32_t* panel = to + pair * kStrip;
    for (std::size_t c = 0; c < columns; c += kStrip, panel += kValuePanel / 2) {
      for (std::size_t i = 0; i < kStrip; i += kLanes) {
        const VU low = LoadHalves(&even[c + i].bits);
        const VU high = hn::ShiftLeft<16>(LoadHalves(&odd[c + i].bits));
        hn::Store(hn::Or(low, high), DU(), panel + i);
      }
    }
  }
}

// The tokens of a span that an item reads, relative to the span. `begin` is a multiple of 16.
struct SpanTokens {
  std::uint32_t span;  // position of the span's first token
  std::uint32_t begin;
  std::uint32_t end;
};

// Prefetches 16 rows of keys and values into L2, one row of each per step.
class StripFetch {
 public:
  StripFetch(const BF16* keys, const BF16* values, std::int64_t stride, std::size_t columns,
             std::uint32_t count)
      : keys_(keys), values_(values), stride_(stride), columns_(columns), rows_left_(count) {}

  HWY_INLINE void Step() {
    if (rows_left_ == 0) return;
    for (std::size_t c = 0; c < columns_; c += 32) {
      __builtin_prefetch(keys_ + c, 0, 2);
      __builtin_prefetch(values_ + c, 0, 2);
    }
    keys_ += stride_;
    values_ += stride_;
    --rows_left_;
  }

 private:
  const BF16* keys_;
  const BF16* values_;
  std::int64_t stride_;
  std::size_t columns_;
  std::uint32_t rows_left_;
};

// Copies keys and values of one KV head into tiles.
class SpanLoader {
 public:
  SpanLoader(const Rows& rows, const Pages<BF16>& pages, const Memory& memory)
      : rows_(rows), pages_(pages), memory_(memory), stride_(pages.keys.row_elements()) {
    // TransposeStrip does not write the padding columns after the head, so they are zeroed here.
    const std::size_t size = kStrip * memory.key_columns;
    for (std::size_t strip = 0; strip < kSpan / kStrip; ++strip) {
      std::fill(memory.keys + strip * size + kStrip * rows.head_size,
                memory.keys + (strip + 1) * size, std::uint16_t{0});
    }
  }

  void Load(const SpanTokens& tokens, std::uint32_t head) const {
    for (std::uint32_t j = tokens.begin; j < tokens.end; j += kStrip) {
      StripFetch fetch = FetchOf(tokens, j + kPrefetchStrips * kStrip, head);
      LoadStrip(tokens, j, head, fetch);
    }
    // Clears the unused halves of the first and the last block of 32 tokens.
    if (tokens.begin / kStrip % 2 != 0) ClearValues(tokens.begin - kStrip);
    const std::uint32_t end = (tokens.end + kStrip - 1) / kStrip * kStrip;
    if (end / kStrip % 2 != 0) ClearValues(end);
  }

 private:
  std::uint32_t* PairAt(std::size_t token) const {
    return reinterpret_cast<std::uint32_t*>(memory_.values) + token / 2 * kStrip;
  }

  void LoadStrip(const SpanTokens& tokens, std::uint32_t j, std::uint32_t head,
                 StripFetch& fetch) const {
    const std::uint32_t count = std::min<std::uint32_t>(kStrip, tokens.end - j);
    auto* const keys = reinterpret_cast<float*>(memory_.keys + j * memory_.key_columns);
    const auto padded = static_cast<std::int64_t>(memory_.key_columns);
    const std::uint32_t t = tokens.span + j;
    const bool is_staged = count < kStrip || pages_.is_gathered();
    if (is_staged || rows_.head_size % 8 != 0) {
      TransposeStrip<BF16, false>(Stage(pages_.keys, t, head, count), padded, memory_.key_columns,
                                  fetch, keys);
    } else {
      TransposeStrip<BF16, false>(pages_.RowsAt(pages_.keys, t, head), stride_, rows_.head_size,
                                  fetch, keys);
    }
    if (is_staged || rows_.head_size != rows_.columns) {
      InterleaveStrip(Stage(pages_.values, t, head, count), padded, rows_.columns, fetch,
                      PairAt(j));
    } else {
      InterleaveStrip(pages_.RowsAt(pages_.values, t, head), stride_, rows_.columns, fetch,
                      PairAt(j));
    }
  }

  // Copies rows [t, t + count), at most 16. Pads rows and columns with zeros.
  HWY_NOINLINE const BF16* Stage(const KvView<const BF16>& view, std::uint32_t t,
                                 std::uint32_t head, std::uint32_t count) const {
    auto* const to = reinterpret_cast<BF16*>(memory_.staging);
    std::fill(memory_.staging, memory_.staging + kStrip * memory_.key_columns, std::uint16_t{0});
    for (std::uint32_t j = 0; j < count; ++j) {
      std::copy_n(pages_.RowAt(view, t + j, head), rows_.head_size, to + j * memory_.key_columns);
    }
    return to;
  }

  void ClearValues(std::size_t token) const {
    for (std::size_t c = 0; c < rows_.columns; c += kStrip) {
      std::fill_n(PairAt(token) + c * (kValuePanel / 2 / kStrip), kStrip / 2 * kStrip, 0u);
    }
  }

  // Returns a StripFetch for the strip at token j, or for a strip of the next KV head if j is after
  // the span.
  StripFetch FetchOf(const SpanTokens& tokens, std::uint32_t j, std::uint32_t head) const {
    if (j >= tokens.end) {
      constexpr std::uint32_t kTokens = internal::kAttentionStrip;
      j = tokens.begin + (j - tokens.end) / kTokens * kTokens;
      ++head;
    }
    if (j >= tokens.end || head == pages_.num_heads || pages_.is_gathered()) {
      return StripFetch(nullptr, nullptr, 0, 0, 0);
    }
    return StripFetch(pages_.RowsAt(pages_.keys, tokens.span + j, head),
                      pages_.RowsAt(pages_.values, tokens.span + j, head), stride_, rows_.head_size,
                      std::min<std::uint32_t>(kStrip, tokens.end - j));
  }

  const Rows& rows_;
  const Pages<BF16>& pages_;
  const Memory& memory_;
  std::int64_t stride_;
};

// At most 32 packed rows of a KV head and the tokens of a span that they see.
class RowGroup {
 public:
  RowGroup(const Rows& rows, const Memory& memory, const SpanTokens& tokens, std::size_t first)
      : rows_(rows),
        memory_(memory),
        tokens_(tokens),
        first_(first),
        count_(std::min(kGroupRows, rows.packed - first)),
        num_tiles_((count_ + kTileRows - 1) / kTileRows) {
    const auto in_span = [&](std::uint32_t key) -> std::size_t {
      return key <= tokens.span ? 0 : std::min<std::size_t>(kSpan, key - tokens.span);
    };
    for (std::size_t r = 0; r < count_; ++r) {
      seen_[r] = {in_span(rows.FirstKey(first + r)), in_span(rows.KeysEnd(first + r))};
      if (seen_[r].from >= seen_[r].to) continue;
      seen_by_any_ = {std::min(seen_by_any_.from, seen_[r].from),
                      std::max(seen_by_any_.to, seen_[r].to)};
      seen_by_all_ = {std::max(seen_by_all_.from, seen_[r].from),
                      std::min(seen_by_all_.to, seen_[r].to)};
    }
  }

  // Adds the span's tokens to the states of the KV head. The states must be empty. `queries` are
  // the queries of that head.
  void Attend(internal::Bf16MultiplyFn multiply, const std::uint16_t* queries,
              float* states) const {
    if (seen_by_any_.from >= seen_by_any_.to) return;
    MultiplyKeys(multiply, queries);
    for (std::size_t r = 0; r < count_; ++r) {
      if (seen_[r].from < seen_[r].to) Weigh(r, StateOf(states, r));
    }
    MultiplyValues(multiply);
    const bool is_finite = AreUnseenValuesFinite();
    for (std::size_t r = 0; r < count_; ++r) {
      if (seen_[r].from >= seen_[r].to) continue;
      if (is_finite) {
        CopySums(r, StateOf(states, r));
      } else {
        SumSeenValues(r, StateOf(states, r));
      }
    }
  }

 private:
  std::size_t first_strip() const { return seen_by_any_.from / kStrip; }
  std::size_t end_strip() const { return (seen_by_any_.to + kStrip - 1) / kStrip; }
  std::size_t first_block() const { return seen_by_any_.from / kBlock; }
  std::size_t end_block() const { return (seen_by_any_.to + kBlock - 1) / kBlock; }

  float* StateOf(float* states, std::size_t r) const {
    return states + (first_ + r) * rows_.state_floats;
  }
  // Returns the 16 sums of row r for strip (scores) or panel (values) i.
  float* SumsAt(float* sums, std::size_t i, std::size_t r) const {
    return sums + (i * num_tiles_ + r / kTileRows) * kSumsSize + r % kTileRows * kStrip;
  }
  std::uint16_t* WeightAt(std::size_t r, std::size_t token) const {
    return memory_.weights + r / kTileRows * kTileRows * kSpan + token / kBlock * kTileSize +
           r % kTileRows * kBlock + token % kBlock;
  }

  void MultiplyKeys(internal::Bf16MultiplyFn multiply, const std::uint16_t* queries) const {
    const std::size_t size = kTileRows * memory_.key_columns;
    multiply({.x = queries + first_ * memory_.key_columns,
              .x_stride = static_cast<std::int64_t>(size),
              .w = memory_.keys + first_strip() * size,
              .w_stride = static_cast<std::int64_t>(size),
              .totals = memory_.scores,
              .num_row_tiles = static_cast<std::int64_t>(num_tiles_),
              .num_panels = static_cast<std::int64_t>(end_strip() - first_strip()),
              .num_blocks = static_cast<std::int64_t>(memory_.key_columns / kBlock),
              .num_rows = static_cast<std::int64_t>(count_),
              .is_first = true});
  }

  void MultiplyValues(internal::Bf16MultiplyFn multiply) const {
    multiply({.x = memory_.weights + first_block() * kTileSize,
              .x_stride = static_cast<std::int64_t>(kTileRows * kSpan),
              .w = memory_.values + first_block() * kTileSize,
              .w_stride = static_cast<std::int64_t>(kValuePanel),
              .totals = memory_.sums,
              .num_row_tiles = static_cast<std::int64_t>(num_tiles_),
              .num_panels = static_cast<std::int64_t>(rows_.columns / kStrip),
              .num_blocks = static_cast<std::int64_t>(end_block() - first_block()),
              .num_rows = static_cast<std::int64_t>(count_),
              .is_first = true});
  }

  // Converts the scores of row r to weights. Stores their maximum and their 16 partial sums in
  // `state`.
  void Weigh(std::size_t r, float* state) const {
    const DF d;
    const VisibleRange seen = seen_[r];
    const std::size_t begin = seen.from / kStrip * kStrip;
    const std::size_t end = (seen.to + kStrip - 1) / kStrip * kStrip;
    const auto at = [&](std::size_t j) {
      return SumsAt(memory_.scores, j / kStrip - first_strip(), r) + j % kStrip;
    };
    const auto is_partly_seen = [&](std::size_t j) {
      return j < seen.from || j + kLanes > seen.to;
    };
    const auto is_seen = [&](std::size_t j) HWY_ATTR {
      const VF token = hn::Add(hn::Iota(d, 0), hn::Set(d, static_cast<float>(j)));
      return hn::And(hn::Ge(token, hn::Set(d, static_cast<float>(seen.from))),
                     hn::Lt(token, hn::Set(d, static_cast<float>(seen.to))));
    };
    if (rows_.cap != 0) {
      const VF cap = hn::Set(d, rows_.cap);
      for (std::size_t j = begin; j < end; j += kLanes) {
        hn::Store(hn::Mul(cap, Tanh(hn::Div(hn::Load(d, at(j)), cap))), d, at(j));
      }
    }
    VF max = hn::Set(d, kNoMaximum);
    for (std::size_t j = begin; j < end; j += kLanes) {
      VF score = hn::Load(d, at(j));
      if (is_partly_seen(j)) score = hn::IfThenElse(is_seen(j), score, hn::Set(d, kNoMaximum));
      max = hn::Max(max, score);
    }
    state[rows_.columns] = hn::GetLane(hn::MaxOfLanes(d, max));
    const VF subtrahend = hn::Set(d, state[rows_.columns]);
    VF parts[kRegisters];
    for (std::size_t i = 0; i < kRegisters; ++i) parts[i] = hn::Zero(d);
    for (std::size_t strip = begin; strip < end; strip += kStrip) {
      for (std::size_t i = 0; i < kRegisters; ++i) {
        const std::size_t j = strip + i * kLanes;
        VF weight = Exp2(hn::Sub(hn::Load(d, at(j)), subtrahend));
        if (is_partly_seen(j)) weight = hn::IfThenElseZero(is_seen(j), weight);
        const VU rounded = RoundedBF16(weight);
        StoreUpperHalves(rounded, WeightAt(r, j));
        parts[i] = hn::Add(parts[i], OddBF16(rounded));
      }
    }
    for (std::size_t i = 0; i < kRegisters; ++i) {
      hn::Store(parts[i], d, state + rows_.columns + kStrip + i * kLanes);
    }
    for (std::size_t j = first_block() * kBlock; j < begin; j += kStrip) {
      std::fill_n(WeightAt(r, j), kStrip, std::uint16_t{0});
    }
    for (std::size_t j = end; j < end_block() * kBlock; j += kStrip) {
      std::fill_n(WeightAt(r, j), kStrip, std::uint16_t{0});
    }
  }

  // True if the values of all tokens that at least one row does not see are finite. The weight of
  // such a token is zero, and zero times a value that is not finite is NaN. Values of tokens that
  // the item does not read are zeros.
  bool AreUnseenValuesFinite() const {
    const std::size_t begin = std::max<std::size_t>(first_block() * kBlock, tokens_.begin);
    const std::size_t end = std::min<std::size_t>(end_block() * kBlock, tokens_.end);
    return AreFinite(begin, seen_by_all_.from) && AreFinite(seen_by_all_.to, end);
  }

  // True if the values of the tokens in [begin, end) are finite. May also check one more token at
  // either end, because values are stored in pairs.
  bool AreFinite(std::size_t begin, std::size_t end) const {
    if (begin >= end) return true;
    const DF d;
    const VF zero = hn::Zero(d);
    VF poisoned = zero;  // 0 * x is NaN if x is not finite
    for (std::size_t c = 0; c < rows_.columns; c += kLanes) {
      const auto* const panel =
          reinterpret_cast<const std::uint32_t*>(memory_.values + c / kStrip * kValuePanel) +
          c % kStrip;
      for (std::size_t pair = begin / 2; 2 * pair < end; ++pair) {
        const VU words = hn::Load(DU(), panel + pair * kStrip);
        poisoned = hn::MulAdd(zero, EvenBF16(words), poisoned);
        poisoned = hn::MulAdd(zero, OddBF16(words), poisoned);
      }
    }
    return hn::AllTrue(d, hn::Eq(poisoned, zero));
  }

  // Stores the values of row r in `state`. Adding zero turns -0 into +0.
  HWY_INLINE void CopySums(std::size_t r, float* state) const {
    const DF d;
    for (std::size_t c = 0; c < rows_.columns; c += kLanes) {
      const float* const sums = SumsAt(memory_.sums, c / kStrip, r) + c % kStrip;
      hn::Store(hn::Add(hn::Load(d, sums), hn::Zero(d)), d, state + c);
    }
  }

  // Stores the values of row r like CopySums, but sums only the tokens that row r sees.
  HWY_NOINLINE void SumSeenValues(std::size_t r, float* state) const {
    const auto [from, to] = seen_[r];
    for (std::size_t c = 0; c < rows_.columns; ++c) {
      const std::uint16_t* const values =
          memory_.values + c / kStrip * kValuePanel + c % kStrip * 2;
      float total = 0;
      for (std::size_t block = from / kBlock * kBlock; block < to; block += kBlock) {
        float sums[2] = {};  // even and odd tokens
        for (std::size_t j = std::max(block, from); j < std::min(block + kBlock, to); ++j) {
          sums[j % 2] =
              internal::FlushedFma(BF16{*WeightAt(r, j)}.ToFloat(),
                                   BF16{values[j / 2 * kStrip * 2 + j % 2]}.ToFloat(), sums[j % 2]);
        }
        total = internal::FlushedAdd(total, internal::FlushedAdd(sums[0], sums[1]));
      }
      state[c] = total + 0.0f;
    }
  }

  const Rows& rows_;
  const Memory& memory_;
  const SpanTokens& tokens_;
  std::size_t first_;
  std::size_t count_;
  std::size_t num_tiles_;
  VisibleRange seen_[kGroupRows];
  VisibleRange seen_by_any_ = {kSpan, 0};  // seen by at least one row
  VisibleRange seen_by_all_ = {0, kSpan};  // seen by every row that sees any token
};

void Attend(const AttentionParams& params, const internal::AttentionItem& item,
            internal::Bf16MultiplyFn multiply, std::byte* scratch) {
  const ItemTokens<BF16> tokens = TokensOf<BF16>(params, item);
  const Rows rows(params, item, KvShapeOf(*params.keys),
                  tokens.pages.keys.cache_length(item.sequence));
  const Memory memory(rows, item.num_kv_heads, scratch);
  const SpanLoader loader(rows, tokens.pages, memory);
  for (std::uint32_t head = 0; head < item.num_kv_heads; ++head) {
    RoundQueries(rows.OfHead(head), memory, memory.queries + head * memory.head_queries);
  }
  const std::size_t num_states = item.num_kv_heads * rows.packed;
  for (std::uint32_t span = item.span_begin; span < item.span_end; ++span) {
    float* const states = item.partial != nullptr
                              ? item.partial + (span - item.span_begin) * item.partial_stride
                          : span == item.span_begin ? memory.reduced
                                                    : memory.span;
    for (std::size_t i = 0; i < num_states; ++i) {
      ClearState(states + i * rows.state_floats, rows.columns);
    }
    const std::uint32_t start = span * internal::kAttentionSpan;
    const std::uint32_t end = std::min(tokens.end, start + internal::kAttentionSpan);
    const SpanTokens read = {start, std::max(tokens.begin, start) - start, end - start};
    for (std::uint32_t head = 0; head < item.num_kv_heads; ++head) {
      loader.Load(read, head);
      for (std::size_t i = 0; i < rows.packed; i += kGroupRows) {
        RowGroup(rows, memory, read, i)
            .Attend(multiply, memory.queries + head * memory.head_queries,
                    states + head * rows.total_state_floats());
      }
    }
    if (states != memory.span) continue;
    for (std::size_t i = 0; i < num_states; ++i) {
      const std::size_t at = i * rows.state_floats;
      Reduce(memory.reduced + at, states + at, rows.columns);
    }
  }
  if (item.partial == nullptr) WriteOutput(rows, item.num_kv_heads, memory.reduced);
}

}  // namespace bf16_attention

void AttendBf16(const AttentionParams& params, const internal::AttentionItem& item,
                internal::Bf16MultiplyFn multiply, std::byte* scratch) {
  bf16_attention::Attend(params, item, multiply, scratch);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels::internal {

std::size_t Bf16AttentionScratchBytes(std::uint32_t head_size, std::uint32_t kv_heads,
                                      std::size_t packed_rows) {
  const std::size_t key_columns = KeyColumns(head_size);
  const std::size_t columns = PaddedColumns(head_size);
  const std::size_t group_rows = kBf16RowTiles * kRowTile;
  // The bf16 terms are: keys, values, a staged strip, weights, queries. The f32 terms are: scores,
  // sums of values, and two states per row.
  const std::size_t bf16 = kAttentionSpan * (key_columns + columns) +
                           kAttentionStrip * key_columns + group_rows * kAttentionSpan +
                           (packed_rows + std::size_t{kv_heads} * (kRowTile - 1)) * key_columns;
  const std::size_t f32 =
      group_rows * (kAttentionSpan + columns) + packed_rows * 2 * StateFloats(head_size);
  return bf16 * sizeof(std::uint16_t) + f32 * sizeof(float);
}

}  // namespace quire::kernels::internal

namespace quire::kernels {

HWY_EXPORT(AttendBf16);

namespace internal {

void AttentionBf16Simd(const AttentionParams& params, const AttentionItem& item,
                       Bf16MultiplyFn multiply, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendBf16)(params, item, multiply, scratch);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
