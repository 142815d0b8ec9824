// The packed rows, states and pages of a work item of CPU attention. Compiled once per instruction
// set. Highway's toggle replaces the include guard.

#if defined(QUIRE_KERNELS_CPU_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_ATTENTION_ROWS_INL_H_
#undef QUIRE_KERNELS_CPU_ATTENTION_ROWS_INL_H_
#else
#define QUIRE_KERNELS_CPU_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_tile-inl.h"
#include "kernels/kv_store/kv_dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE void ClearState(float* state, std::size_t columns) {
  std::fill(state, state + columns + 2 * kStrip, 0.0f);
  state[columns] = kNoMaximum;
}

// True if the state has no keys. A state with a NaN score may have no maximum, because the maximum
// of vectors may ignore NaN. The partial sums of such a state are not zero.
HWY_INLINE bool IsEmpty(const float* state, std::size_t columns) {
  if (state[columns] != kNoMaximum) return false;
  const DF d;
  for (std::size_t i = 0; i < kStrip; i += kLanes) {
    const VF part = hn::Load(d, state + columns + kStrip + i);
    if (!hn::AllTrue(d, hn::Eq(part, hn::Zero(d)))) return false;
  }
  return true;
}

// Reduces `span` into `reduced`. An empty `span` changes nothing, so a row's bits do not depend on
// the number of spans before its window.
HWY_INLINE void Reduce(float* HWY_RESTRICT reduced, const float* HWY_RESTRICT span,
                       std::size_t columns) {
  const DF d;
  if (IsEmpty(span, columns)) return;
  if (IsEmpty(reduced, columns)) {
    std::copy(span, span + columns + 2 * kStrip, reduced);
    return;
  }
  const float max = std::max(reduced[columns], span[columns]);
  const VF left = hn::Set(d, ScalarExp2(reduced[columns] - max));
  const VF right = hn::Set(d, ScalarExp2(span[columns] - max));
  const auto join = [&](std::size_t i) HWY_ATTR {
    const VF scaled = hn::Mul(hn::Load(d, reduced + i), left);
    hn::Store(hn::MulAdd(hn::Load(d, span + i), right, scaled), d, reduced + i);
  };
  for (std::size_t i = 0; i < columns; i += kLanes) join(i);
  for (std::size_t i = 0; i < kStrip; i += kLanes) join(columns + kStrip + i);
  reduced[columns] = max;
}

// Scores are multiplied by log2(e), because 2^x is cheaper to compute than e^x.
inline constexpr float kLog2E = 1.44269504f;

// The packed rows of an item for one KV head: their offsets in q and out, and the keys that each
// row sees. Packed row i is query row i / group and query head i mod group of the KV head.
struct Rows {
  Rows(const AttentionParams& p, const internal::AttentionItem& item, const KvShape& shape,
       std::uint32_t cached)
      : params(p),
        head_size(shape.head_size),
        columns(internal::PaddedColumns(shape.head_size)),
        state_floats(internal::StateFloats(shape.head_size)),
        group(p.num_heads / shape.num_heads),
        packed(std::size_t{item.num_rows} * group),
        first(std::int64_t{p.row_offsets[item.sequence]} + item.row_begin),
        column(std::int64_t{item.kv_head} * group * head_size),
        keys(cached + item.row_begin + 1),
        cap(p.softcap * kLog2E) {}

  // Returns the rows for KV head number `head` of the item.
  Rows OfHead(std::uint32_t head) const {
    Rows rows = *this;
    rows.column += std::int64_t{head} * group * head_size;
    return rows;
  }
  std::int64_t Column(std::size_t i) const {
    return column + static_cast<std::int64_t>(i % group) * head_size;
  }
  std::int64_t Row(std::size_t i) const { return first + static_cast<std::int64_t>(i / group); }
  // Returns the end of the keys that row i may see: its own position plus 1.
  std::uint32_t KeysEnd(std::size_t i) const {
    return keys + static_cast<std::uint32_t>(i / group);
  }
  // Returns the first key that row i sees.
  std::uint32_t FirstKey(std::size_t i) const {
    return FirstVisible(KeysEnd(i) - 1, params.window, params.chunk);
  }
  std::size_t Head(std::size_t i) const { return static_cast<std::size_t>(Column(i) / head_size); }
  std::size_t query_floats() const { return packed * columns; }
  std::size_t total_state_floats() const { return packed * state_floats; }

  const AttentionParams& params;
  std::uint32_t head_size;
  std::size_t columns;
  std::size_t state_floats;
  std::uint32_t group;
  std::size_t packed;
  std::int64_t first;
  std::int64_t column;
  std::uint32_t keys;  // KeysEnd(0)
  float cap;           // soft cap of scores; 0: none
};

// Returns the factor that converts the columns of a state to output: the reciprocal of the sum of
// weights, including the weight of a sink.
inline float InverseSum(const Rows& rows, std::size_t i, const float* state) {
  const float sum = SumLanes(state + rows.columns + kStrip);
  if (rows.params.sinks == nullptr) return 1.0f / sum;
  const float sink = rows.params.sinks[rows.Head(i)] * kLog2E;
  const float max = state[rows.columns];
  if (sink <= max) return 1.0f / (sum + ScalarExp2(sink - max));
  const float left = ScalarExp2(max - sink);
  return left / (sum * left + 1.0f);
}

inline void WriteHead(const Rows& rows, const float* states) {
  const DF d;
  for (std::size_t i = 0; i < rows.packed; ++i) {
    const float* const state = states + i * rows.state_floats;
    const float inverse = InverseSum(rows, i, state);
    float* const out =
        rows.params.out.f32() + rows.Row(i) * rows.params.out_stride + rows.Column(i);
    std::size_t c = 0;
    for (; c + kLanes <= rows.head_size; c += kLanes) {
      hn::StoreU(hn::Mul(hn::Load(d, state + c), hn::Set(d, inverse)), d, out + c);
    }
    for (; c < rows.head_size; ++c) out[c] = state[c] * inverse;
  }
}

inline void WriteOutput(const Rows& rows, std::uint32_t kv_heads, const float* states) {
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    WriteHead(rows.OfHead(head), states + head * rows.total_state_floats());
  }
}

// K and V of an item's KV heads.
template <typename T>
struct Pages {
  KvView<const T> keys;
  KvView<const T> values;
  std::uint32_t sequence;
  std::uint32_t first_head;
  std::uint32_t num_heads;

  // Returns the row of token t. The rows of the next 15 tokens follow it, row_elements() apart.
  const T* RowsAt(const KvView<const T>& view, std::uint32_t t, std::uint32_t head) const {
    return view.template block_paged_ptr<kStrip>(sequence, t, first_head + head);
  }
  // Returns the row of token t. The rows of other tokens may be at any distance.
  const T* RowAt(const KvView<const T>& view, std::uint32_t t, std::uint32_t head) const {
    return view.template block_paged_ptr<1>(sequence, t, first_head + head);
  }
  // True if the rows of a strip are not at a constant distance, because every row has a separate
  // page (sparse_attention.h).
  bool is_gathered() const { return keys.page_size() < kStrip; }
  void LoadScales(const KvView<const T>& view, std::uint32_t t, std::uint32_t head,
                  std::uint32_t count, float* to) const {
    if (is_gathered()) {
      for (std::uint32_t j = 0; j < count; ++j) {
        to[j] = *view.scales_block_paged_ptr(sequence, t + j, first_head + head);
      }
      return;
    }
    const auto* const scales = view.scales_block_paged_ptr(sequence, t, first_head + head);
    const std::int64_t stride = view.scale_row_elements();
    for (std::uint32_t j = 0; j < count; ++j) to[j] = scales[j * stride];
  }
};

// The tokens that an item reads: [begin, end), with begin rounded down to a multiple of 16.
template <typename T>
struct ItemTokens {
  Pages<T> pages;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

template <typename T>
ItemTokens<T> TokensOf(const AttentionParams& params, const internal::AttentionItem& item) {
  const Pages<T> pages{std::get<KvView<T>>(*params.keys), std::get<KvView<T>>(*params.values),
                       item.sequence, item.kv_head, item.num_kv_heads};
  const Rows rows(params, item, KvShapeOf(*params.keys), pages.keys.cache_length(item.sequence));
  const std::uint32_t first =
      std::max(item.span_begin * internal::kAttentionSpan, rows.FirstKey(0));
  return {pages, first / internal::kAttentionStrip * internal::kAttentionStrip,
          std::min(item.span_end * internal::kAttentionSpan, rows.KeysEnd(rows.packed - 1))};
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
