// Traffic: K and V of a sequence once per KV head and block of query rows, widened to f32 once per
// tile into L1 scratch that serves all rows and all heads of the group. A score is one register per
// 16 columns and key, reduced by a tree of two extracts and a 4 x 4 transposing addition; V rows
// are added with lanes along the columns. Rescaling is skipped while the maximum stands, which is
// exact (factor 1).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "kernels/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

constexpr std::size_t kTile = internal::kAttentionTile;
static_assert(kTile == kVirtualLanes);
constexpr float kNoMaximum = -std::numeric_limits<float>::infinity();

// The end of a row whose columns are no multiple of a register: the rest widened, then zeros.
template <typename T>
HWY_NOINLINE void WidenTail(const T* from, std::size_t i, std::size_t count, std::size_t padded,
                            float* to) {
  for (; i < count; ++i) to[i] = ToFloat(from[i]);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// to[padded] = from[count] widened, zeros after it.
template <typename T>
HWY_INLINE void WidenRow(const T* HWY_RESTRICT from, std::size_t count, std::size_t padded,
                         float* HWY_RESTRICT to) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::Store(LoadWide(from + i), DF(), to + i);
  if (i < padded) WidenTail(from, i, count, padded, to);
}

#if HWY_TARGET == HWY_SCALAR
// s[0..3] = q . k for four keys.
void FourScores(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, std::size_t columns,
                float* HWY_RESTRICT s) {
  for (std::size_t j = 0; j < 4; ++j) {
    float lanes[kVirtualLanes] = {};
    for (std::size_t i = 0; i < columns; ++i) lanes[i % kVirtualLanes] += q[i] * k[j * columns + i];
    s[j] = SumLanes(lanes);
  }
}
#else
using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

// 16 virtual lanes to 4: lane i with i + 8, then with i + 4.
HWY_INLINE V4 FoldTo4(const VF (&v)[kRegisters]) {
  const D4 d4;
#if HWY_MAX_BYTES >= 64
  const hn::Half<DF> d8;
  const auto half = hn::Add(hn::LowerHalf(d8, v[0]), hn::UpperHalf(d8, v[0]));
  return hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
#elif HWY_MAX_BYTES == 32
  const VF half = hn::Add(v[0], v[1]);
  return hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
#else
  (void)d4;
  return hn::Add(hn::Add(v[0], v[2]), hn::Add(v[1], v[3]));
#endif
}

// s[0..3] = q . k for four keys.
HWY_INLINE void FourScores(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                           std::size_t columns, float* HWY_RESTRICT s) {
  const DF d;
  const D4 d4;
  VF acc[4][kRegisters];
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t c = 0; c < kRegisters; ++c) acc[j][c] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < columns; i += kVirtualLanes) {
    for (std::size_t c = 0; c < kRegisters; ++c) {
      const VF x = hn::Load(d, q + i + c * kLanes);
      for (std::size_t j = 0; j < 4; ++j) {
        acc[j][c] = hn::MulAdd(x, hn::Load(d, k + j * columns + i + c * kLanes), acc[j][c]);
      }
    }
  }
  const V4 t0 = FoldTo4(acc[0]);
  const V4 t1 = FoldTo4(acc[1]);
  const V4 t2 = FoldTo4(acc[2]);
  const V4 t3 = FoldTo4(acc[3]);
  const V4 a = hn::Add(hn::InterleaveLower(d4, t0, t1), hn::InterleaveUpper(d4, t0, t1));
  const V4 b = hn::Add(hn::InterleaveLower(d4, t2, t3), hn::InterleaveUpper(d4, t2, t3));
  hn::Store(hn::Add(hn::ConcatLowerLower(d4, b, a), hn::ConcatUpperUpper(d4, b, a)), d4, s);
}
#endif  // HWY_TARGET

// state *= factor, the maximum excepted.
HWY_INLINE void Rescale(float* state, std::size_t columns, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  for (std::size_t i = 0; i < columns; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, state + i), f), d, state + i);
  }
  state[columns + 1] = state[columns + 1] * factor;
}

HWY_INLINE float ScalarExp(float x) {
  return hn::GetLane(Exp(hn::Set(DF(), x)));
}

// sums[0 .. kRows * 16) += p[j] v[j][..] for j ascending.
template <std::size_t kRows>
HWY_INLINE void AddValues(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v,
                          std::size_t columns, std::size_t valid, float* HWY_RESTRICT sums) {
  const DF d;
  constexpr std::size_t kCount = kRows * kRegisters;
  VF acc[kCount];
  for (std::size_t c = 0; c < kCount; ++c) acc[c] = hn::Load(d, sums + c * kLanes);
  for (std::size_t j = 0; j < valid; ++j) {
    const VF weight = hn::Set(d, p[j]);
    for (std::size_t c = 0; c < kCount; ++c) {
      acc[c] = hn::MulAdd(weight, hn::Load(d, v + j * columns + c * kLanes), acc[c]);
    }
  }
  for (std::size_t c = 0; c < kCount; ++c) hn::Store(acc[c], d, sums + c * kLanes);
}

// One online-softmax step: the first `valid` keys of a tile join the state of one row and head.
HWY_INLINE void AttendTile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                           const float* HWY_RESTRICT v, std::size_t columns, std::size_t valid,
                           float scale, float* HWY_RESTRICT state) {
  const DF d;
  HWY_ALIGN float p[kTile];
  for (std::size_t j = 0; j < valid; j += 4) FourScores(q, k + j * columns, columns, p + j);
  VF max = hn::Set(d, kNoMaximum);
  for (std::size_t j = valid; j < kTile; ++j) p[j] = kNoMaximum;
  for (std::size_t j = 0; j < kTile; j += kLanes) {
    const VF s = hn::Mul(hn::Load(d, p + j), hn::Set(d, scale));
    hn::Store(s, d, p + j);
    max = hn::Max(max, s);
  }
  // A negative scale turns the marks of unseen keys around.
  for (std::size_t j = valid; j < kTile; ++j) p[j] = kNoMaximum;
  const float old_max = state[columns];
  const float new_max = std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, max)));
  if (new_max != old_max) {
    Rescale(state, columns, ScalarExp(old_max - new_max));
    state[columns] = new_max;
  }
  for (std::size_t j = 0; j < kTile; j += kLanes) {
    hn::Store(Exp(hn::Sub(hn::Load(d, p + j), hn::Set(d, new_max))), d, p + j);
  }
  state[columns + 1] = state[columns + 1] + SumLanes(p);
  constexpr std::size_t kRows = kRegisters >= 4 ? 2 : 4;
  std::size_t i = 0;
  for (; i + kRows * kVirtualLanes <= columns; i += kRows * kVirtualLanes) {
    AddValues<kRows>(p, v + i, columns, valid, state + i);
  }
  for (; i < columns; i += kVirtualLanes) AddValues<1>(p, v + i, columns, valid, state + i);
}

HWY_INLINE void ClearState(float* state, std::size_t columns) {
  std::fill(state, state + columns + 2, 0.0f);
  state[columns] = kNoMaximum;
}

// folded = folded and span, in this order. A span without keys changes nothing.
HWY_INLINE void Fold(float* HWY_RESTRICT folded, const float* HWY_RESTRICT span,
                     std::size_t columns) {
  const DF d;
  if (span[columns] == kNoMaximum && span[columns + 1] == 0.0f) return;
  const float max = std::max(folded[columns], span[columns]);
  const float a = ScalarExp(folded[columns] - max);
  const float b = ScalarExp(span[columns] - max);
  const VF va = hn::Set(d, a);
  const VF vb = hn::Set(d, b);
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const VF left = hn::Mul(hn::Load(d, folded + i), va);
    hn::Store(hn::MulAdd(hn::Load(d, span + i), vb, left), d, folded + i);
  }
  folded[columns + 1] = folded[columns + 1] * a + span[columns + 1] * b;
  folded[columns] = max;
}

// Where the rows of an item lie in q and out, and how many keys each sees.
struct Rows {
  Rows(const AttentionParams& p, const internal::AttentionItem& item, const KvShape& shape,
       std::uint32_t cached)
      : params(p),
        head_size(shape.head_size),
        group(p.num_heads / shape.num_heads),
        first(std::int64_t{p.row_offsets[item.sequence]} + item.row_begin),
        column(std::int64_t{item.kv_head} * group * head_size),
        keys(cached + item.row_begin + 1) {}

  const float* Query(std::uint32_t r, std::uint32_t g) const {
    return params.q.f32() + (first + r) * params.q_stride + column + std::int64_t{g} * head_size;
  }
  float* Out(std::uint32_t r, std::uint32_t g) const {
    return params.out.f32() + (first + r) * params.out_stride + column + std::int64_t{g} * head_size;
  }
  std::uint32_t KeysOf(std::uint32_t r) const { return keys + r; }

  const AttentionParams& params;
  const std::uint32_t head_size;
  const std::uint32_t group;
  const std::int64_t first;
  const std::int64_t column;
  const std::uint32_t keys;
};

void WriteOutput(const Rows& rows, std::uint32_t num_rows, const float* states) {
  const DF d;
  const std::size_t columns = internal::PaddedColumns(rows.head_size);
  const std::size_t stride = internal::StateFloats(rows.head_size);
  for (std::uint32_t r = 0; r < num_rows; ++r) {
    for (std::uint32_t g = 0; g < rows.group; ++g) {
      const float* const state = states + (std::size_t{r} * rows.group + g) * stride;
      const float inverse = 1.0f / state[columns + 1];
      float* const out = rows.Out(r, g);
      std::size_t i = 0;
      for (; i + kLanes <= rows.head_size; i += kLanes) {
        hn::StoreU(hn::Mul(hn::Load(d, state + i), hn::Set(d, inverse)), d, out + i);
      }
      for (; i < rows.head_size; ++i) out[i] = state[i] * inverse;
    }
  }
}

// The rows of a tile on their way to L1: pages lie anywhere and heads leave gaps, so the hardware
// does not see the next tile coming.
template <typename T>
HWY_INLINE void PrefetchTile(const KvView<const T>& view, const internal::AttentionItem& item,
                             std::uint32_t t) {
  const std::int64_t row_elements = view.row_elements();
  const T* const rows = view.template block_paged_ptr<kTile>(item.sequence, t, item.kv_head);
  for (std::size_t j = 0; j < kTile; ++j) {
    for (std::size_t i = 0; i < view.head_size(); i += 64 / sizeof(T)) {
      hwy::Prefetch(rows + static_cast<std::int64_t>(j) * row_elements + i);
    }
  }
}

// Keys [begin, end) of one span join the states of all rows that see them.
template <typename T>
void AttendSpan(const Rows& rows, const internal::AttentionItem& item, const KvView<const T>& keys,
                const KvView<const T>& values, std::uint32_t begin, std::uint32_t end,
                const float* queries, float* tiles, float* states) {
  const std::size_t columns = internal::PaddedColumns(rows.head_size);
  const std::size_t stride = internal::StateFloats(rows.head_size);
  const std::int64_t row_elements = keys.row_elements();
  float* const k = tiles;
  float* const v = tiles + kTile * columns;
  for (std::uint32_t t = begin; t < end; t += kTile) {
    const std::uint32_t count = std::min<std::uint32_t>(kTile, end - t);
    const T* const k_rows = keys.template block_paged_ptr<kTile>(item.sequence, t, item.kv_head);
    const T* const v_rows = values.template block_paged_ptr<kTile>(item.sequence, t, item.kv_head);
    if (t + kTile < end) {
      PrefetchTile(keys, item, t + kTile);
      PrefetchTile(values, item, t + kTile);
    }
    for (std::uint32_t j = 0; j < count; ++j) {
      WidenRow(k_rows + j * row_elements, rows.head_size, columns, k + j * columns);
      WidenRow(v_rows + j * row_elements, rows.head_size, columns, v + j * columns);
    }
    for (std::uint32_t r = 0; r < item.num_rows; ++r) {
      if (rows.KeysOf(r) <= t) continue;
      const std::size_t valid = std::min<std::size_t>(kTile, rows.KeysOf(r) - t);
      for (std::uint32_t g = 0; g < rows.group; ++g) {
        const std::size_t index = std::size_t{r} * rows.group + g;
        AttendTile(queries + index * columns, k, v, columns, valid, rows.params.scale,
                   states + index * stride);
      }
    }
  }
}

template <typename T>
void Attend(const AttentionParams& params, const internal::AttentionItem& item, float* scratch) {
  const KvView<const T> keys = std::get<KvView<T>>(*params.keys);
  const KvView<const T> values = std::get<KvView<T>>(*params.values);
  const Rows rows(params, item, KvShapeOf(*params.keys), keys.cache_length(item.sequence));
  const std::size_t columns = internal::PaddedColumns(rows.head_size);
  const std::size_t stride = internal::StateFloats(rows.head_size);
  const std::size_t num_states = std::size_t{item.num_rows} * rows.group;

  float* const tiles = scratch;
  float* const queries = tiles + 2 * kTile * columns;
  float* const folded = queries + num_states * columns;
  float* const span_states = folded + num_states * stride;
  std::fill(tiles, queries, 0.0f);
  for (std::uint32_t r = 0; r < item.num_rows; ++r) {
    for (std::uint32_t g = 0; g < rows.group; ++g) {
      WidenRow(rows.Query(r, g), rows.head_size, columns,
               queries + (std::size_t{r} * rows.group + g) * columns);
    }
  }
  const std::uint32_t all_keys = rows.KeysOf(item.num_rows - 1);
  for (std::uint32_t span = item.span_begin; span < item.span_end; ++span) {
    float* const states = item.partial != nullptr
                              ? item.partial + (span - item.span_begin) * item.partial_stride
                          : span == 0 ? folded
                                      : span_states;
    for (std::size_t i = 0; i < num_states; ++i) ClearState(states + i * stride, columns);
    AttendSpan<T>(rows, item, keys, values, span * internal::kAttentionSpan,
                  std::min(all_keys, (span + 1) * internal::kAttentionSpan), queries, tiles,
                  states);
    if (states != span_states) continue;
    for (std::size_t i = 0; i < num_states; ++i) {
      Fold(folded + i * stride, states + i * stride, columns);
    }
  }
  if (item.partial == nullptr) WriteOutput(rows, item.num_rows, folded);
}

void AttentionRun(const AttentionParams& params, const internal::AttentionItem& item,
                  float* scratch) {
  if (std::holds_alternative<KvView<float>>(*params.keys)) {
    Attend<float>(params, item, scratch);
  } else if (std::holds_alternative<KvView<BF16>>(*params.keys)) {
    Attend<BF16>(params, item, scratch);
  } else {
    Attend<F16>(params, item, scratch);
  }
}

void AttentionFold(const AttentionParams& params, const internal::AttentionItem& item) {
  const Rows rows(params, item, KvShapeOf(*params.keys), 0);
  const std::size_t columns = internal::PaddedColumns(rows.head_size);
  const std::size_t stride = internal::StateFloats(rows.head_size);
  for (std::uint32_t span = 1; span < item.span_end; ++span) {
    for (std::size_t i = 0; i < std::size_t{item.num_rows} * rows.group; ++i) {
      Fold(item.partial + i * stride, item.partial + span * item.partial_stride + i * stride,
           columns);
    }
  }
  WriteOutput(rows, item.num_rows, item.partial);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(AttentionRun);
HWY_EXPORT(AttentionFold);

namespace internal {

void AttentionSimd(const AttentionParams& params, const AttentionItem& item, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionRun)(params, item, reinterpret_cast<float*>(scratch));
}

void AttentionFoldSimd(const AttentionParams& params, const AttentionItem& item) {
  HWY_DYNAMIC_DISPATCH(AttentionFold)(params, item);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
