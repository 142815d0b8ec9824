// The inner loops of CPU attention, compiled once per instruction set. Highway's toggle replaces
// the include guard. attention.h documents the reduction order.
//
// Keys: a strip of 16 tokens is transposed, so that the lanes of a register hold the same column of
// consecutive tokens. Scores are then one chain of FMAs with one token per lane, without a
// horizontal sum. Elements narrower than 32 bits are transposed as 32-bit words of several columns.
// These words are widened in registers if few rows use them, otherwise once into scratch memory.
//
// Values are not transposed: a register holds consecutive columns of one token.
//
// The sums of a block of query rows stay in registers for a whole tile. The queries of a block are
// stored as [columns][rows], so that a column of all rows is contiguous.
//
// Every loop calls Step() of its `fetch` argument (TileFetch or NoFetch) once per iteration, which
// prefetches a small part of the next tile. Issuing all prefetches at once would stall the core.

#if defined(QUIRE_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef QUIRE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define QUIRE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels {
namespace HWY_NAMESPACE {

inline constexpr std::size_t kTile = internal::kAttentionTile;
inline constexpr std::size_t kStrip = internal::kAttentionStrip;
inline constexpr std::size_t kStrips = kTile / kStrip;
static_assert(kStrip == kVirtualLanes);
inline constexpr float kNoMaximum = -std::numeric_limits<float>::infinity();

// kMaxBlockRows is the number of query rows of the largest block. kBlockWidth is the number of
// strips (scores) or groups of 16 columns (values) that a block processes at a time. The sums must
// fit into the registers of the instruction set.
inline constexpr std::size_t kMaxBlockRows = kRegisters == 1 ? 8 : kRegisters == 2 ? 4 : 1;
template <std::size_t kRows>
inline constexpr std::size_t kBlockWidth = kRegisters == 1   ? (kRows == 8 ? 2 : 4)
                                           : kRegisters == 2 ? 4 / kRows
                                                             : 1;

// Returns 2^x for x <= 0, within 2 units in the last place. Returns 0 for x below -126.5 and NaN
// for NaN. With x = n + r and |r| <= 1/2, 2^r is a polynomial that interpolates at Chebyshev nodes
// (error 1e-8) and is 1 at 0.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  const VF low = hn::Set(d, -127.0f);
  // The comparison is false for NaN, so NaN is kept.
  const VF clamped = hn::IfThenElse(hn::Lt(x, low), low, x);
  const VF n = hn::Round(clamped);
  const VF r = hn::Sub(clamped, n);
  VF p = hn::Set(d, 1.54531634e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.33908633e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.61808302e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.55035695e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.40226507e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.93147182e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
}

HWY_INLINE float ScalarExp2(float x) {
  return hn::GetLane(Exp2(hn::Set(DF(), x)));
}

// Widens the e4m3 bits at the top of each lane. Shifted into the exponent and mantissa fields of an
// f32, the bits are the value times 2^-120, also for subnormals. NaN becomes 480, but the KV store
// ops never write NaN.
HWY_INLINE VF WidenF8(VU top) {
  const DI di;
  const auto moved = hn::ShiftRight<4>(hn::BitCast(di, top));
  const auto bits = hn::And(moved, hn::Set(di, static_cast<std::int32_t>(0x87f00000u)));
  return hn::Mul(hn::BitCast(DF(), bits), hn::Set(DF(), 0x1p120f));
}

// Returns element kElement of each 32-bit word, widened.
template <typename T, std::size_t kElement>
HWY_INLINE VF FromWords(VU words) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::BitCast(DF(), words);
  } else if constexpr (std::is_same_v<T, BF16>) {
    return kElement == 0 ? EvenBF16(words) : OddBF16(words);
  } else if constexpr (std::is_same_v<T, F16>) {
    return kElement == 0 ? EvenF16(words) : OddF16(words);
  } else {
    const VU top = hn::ShiftLeft<24 - 8 * kElement>(words);
    if constexpr (std::is_same_v<T, F8E4M3>) return WidenF8(top);
    return hn::ConvertTo(DF(), hn::ShiftRight<24>(hn::BitCast(DI(), top)));
  }
}

// Loads kLanes elements of a row and widens them.
HWY_INLINE VF LoadWide(const std::int8_t* from) {
  const hn::Rebind<std::int8_t, DF> narrow;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(narrow, from)));
}
HWY_INLINE VF LoadWide(const F8E4M3* from) {
  const hn::Rebind<std::uint8_t, DF> narrow;
  const auto bytes = hn::LoadU(narrow, reinterpret_cast<const std::uint8_t*>(from));
  return WidenF8(hn::ShiftLeft<24>(hn::PromoteTo(DU(), bytes)));
}

// Calls fn(std::integral_constant<std::size_t, i>) for each column i of a word.
template <typename T, typename Fn>
HWY_INLINE void ForColumnsOfWord(Fn&& fn) {
  fn(std::integral_constant<std::size_t, 0>());
  if constexpr (sizeof(T) <= 2) fn(std::integral_constant<std::size_t, 1>());
  if constexpr (sizeof(T) == 1) {
    fn(std::integral_constant<std::size_t, 2>());
    fn(std::integral_constant<std::size_t, 3>());
  }
}

// Replaces TileFetch for a tile that is read so often that prefetching it would not help.
struct NoFetch {
  HWY_INLINE void StartAfter(std::uint32_t) {}
  HWY_INLINE void Step() {}
};

#if HWY_TARGET == HWY_SCALAR
// Stores word c of token t at out[c][t]. With kWide, c is a column and the element is widened.
template <typename T, bool kWide, typename Fetch>
void TransposeStrip(const T* rows, std::int64_t stride, std::size_t columns, Fetch& fetch,
                    float* HWY_RESTRICT out) {
  constexpr std::size_t kPerWord = 4 / sizeof(T);
  for (std::size_t t = 0; t < kStrip; ++t) {
    fetch.Step();
    for (std::size_t c = 0; c < columns / kPerWord; ++c) {
      std::uint32_t word;
      std::memcpy(&word, rows + static_cast<std::int64_t>(t) * stride + c * kPerWord, 4);
      if constexpr (kWide) {
        ForColumnsOfWord<T>([&](auto e) {
          hn::Store(FromWords<T, e>(hn::Set(DU(), word)), DF(),
                    out + (c * kPerWord + e) * kStrip + t);
        });
      } else {
        std::memcpy(out + c * kStrip + t, &word, 4);
      }
    }
  }
}
#else
using D4U = hn::FixedTag<std::uint32_t, 4>;

// Loads four words of each of the tokens 0, 4, 8 and so on, one token per 128 bits of the register.
HWY_INLINE VU LoadBlocks(const std::uint8_t* from, std::int64_t bytes) {
  const D4U d4;
  const auto load = [&](std::int64_t token) HWY_ATTR {
    return hn::LoadU(d4, reinterpret_cast<const std::uint32_t*>(from + token * bytes));
  };
#if HWY_MAX_BYTES >= 64
  const hn::FixedTag<std::uint32_t, 8> d8;
  return hn::Combine(DU(), hn::Combine(d8, load(12), load(8)), hn::Combine(d8, load(4), load(0)));
#elif HWY_MAX_BYTES == 32
  return hn::Combine(DU(), load(4), load(0));
#else
  return load(0);
#endif
}

// Stores word c of token t at out[c][t]. With kWide, c is a column and the element is widened. Rows
// have `columns` elements, a multiple of 16 bytes.
template <typename T, bool kWide, typename Fetch>
HWY_INLINE void TransposeStrip(const T* HWY_RESTRICT rows, std::int64_t stride, std::size_t columns,
                               Fetch& fetch, float* HWY_RESTRICT out) {
  const DU du;
  const hn::Repartition<std::uint64_t, DU> d64;
  constexpr std::size_t kPerWord = 4 / sizeof(T);
  const auto bytes = stride * static_cast<std::int64_t>(sizeof(T));
  const auto* const base = reinterpret_cast<const std::uint8_t*>(rows);
  for (std::size_t word = 0; word < columns / kPerWord; word += 4) {
    fetch.Step();
    for (std::size_t part = 0; part < kRegisters; ++part) {
      const std::uint8_t* const from =
          base + word * 4 + static_cast<std::int64_t>(part * kLanes) * bytes;
      const VU r0 = LoadBlocks(from, bytes);
      const VU r1 = LoadBlocks(from + bytes, bytes);
      const VU r2 = LoadBlocks(from + 2 * bytes, bytes);
      const VU r3 = LoadBlocks(from + 3 * bytes, bytes);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(du, r0, r1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(du, r2, r3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(du, r0, r1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(du, r2, r3));
      const auto put = [&](std::size_t k, auto transposed) HWY_ATTR {
        const VU words = hn::BitCast(du, transposed);
        float* const to = out + part * kLanes;
        if constexpr (kWide) {
          ForColumnsOfWord<T>([&](auto e) HWY_ATTR {
            hn::Store(FromWords<T, e>(words), DF(), to + ((word + k) * kPerWord + e) * kStrip);
          });
        } else {
          hn::Store(hn::BitCast(DF(), words), DF(), to + (word + k) * kStrip);
        }
      };
      put(0, hn::InterleaveLower(d64, low01, low23));
      put(1, hn::InterleaveUpper(d64, low01, low23));
      put(2, hn::InterleaveLower(d64, high01, high23));
      put(3, hn::InterleaveUpper(d64, high01, high23));
    }
  }
}
#endif  // HWY_TARGET

// Computes p[row][token] = q[row] . k[token] for kWidth strips of transposed keys, `strip_floats`
// apart.
template <typename T, std::size_t kRows, std::size_t kWidth, typename Fetch>
HWY_INLINE void ScoreStrips(const float* HWY_RESTRICT q, const float* HWY_RESTRICT transposed,
                            std::size_t strip_floats, std::size_t columns, Fetch& fetch,
                            float* HWY_RESTRICT p) {
  const DF d;
  constexpr std::size_t kPerWord = 4 / sizeof(T);
  constexpr std::size_t kCount = kWidth * kRegisters;
  VF acc[kRows][kCount];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCount; ++c) acc[r][c] = hn::Zero(d);
  }
  for (std::size_t word = 0; word < columns / kPerWord; ++word) {
    fetch.Step();
    VU words[kCount];
    for (std::size_t c = 0; c < kCount; ++c) {
      words[c] = hn::BitCast(DU(), hn::Load(d, transposed + c / kRegisters * strip_floats +
                                                   word * kStrip + c % kRegisters * kLanes));
    }
    ForColumnsOfWord<T>([&](auto e) HWY_ATTR {
      VF k[kCount];
      for (std::size_t c = 0; c < kCount; ++c) k[c] = FromWords<T, e>(words[c]);
      const float* const x = q + (word * kPerWord + e) * kRows;
      for (std::size_t r = 0; r < kRows; ++r) {
        const VF weight = hn::Set(d, x[r]);
        for (std::size_t c = 0; c < kCount; ++c) acc[r][c] = hn::MulAdd(weight, k[c], acc[r][c]);
      }
    });
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCount; ++c) {
      hn::Store(acc[r][c], d, p + r * kTile + c * kLanes);
    }
  }
}

// Multiplies the columns of a state and its 16 partial sums by `factor`.
HWY_INLINE void Rescale(float* state, std::size_t columns, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  float* const sums = state + columns + kStrip;
  for (std::size_t i = 0; i < columns; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, state + i), f), d, state + i);
  }
  for (std::size_t i = 0; i < kStrip; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, sums + i), f), d, sums + i);
  }
}

// Scales of a tile's tokens; null if there are none.
struct TileScales {
  const float* k;
  const float* v;
};

// The tokens [from, to) of a tile that a row sees.
struct VisibleRange {
  std::size_t from;
  std::size_t to;
};

// Multiplies the scores p of the strips that overlap `seen` by the K scales, then applies the soft
// cap: p = cap tanh(p / cap).
template <bool kScaled>
HWY_NOINLINE void CapScores(const VisibleRange& seen, const TileScales& scales, float cap,
                            float* HWY_RESTRICT p) {
  const DF d;
  const VF limit = hn::Set(d, cap);
  for (std::size_t j = seen.from / kStrip * kStrip; j < seen.to; j += kLanes) {
    VF s = hn::Load(d, p + j);
    if constexpr (kScaled) s = hn::Mul(s, hn::Load(d, scales.k + j));
    hn::Store(hn::Mul(limit, Tanh(hn::Div(s, limit))), d, p + j);
  }
}

// Converts the scores of the tokens in `seen` (at least one) to weights. If there are scales,
// multiplies each weight by the token's V scale. Updates the state's maximum, sum and columns.
// scales.k is null if the scores already include the K scales.
template <bool kScaled>
HWY_INLINE void SoftmaxTile(const VisibleRange& seen, std::size_t columns, const TileScales& scales,
                            float* HWY_RESTRICT p, float* HWY_RESTRICT state) {
  const DF d;
  const std::size_t begin = seen.from / kStrip * kStrip;
  const std::size_t end = (seen.to + kStrip - 1) / kStrip * kStrip;
  VF max = hn::Set(d, kNoMaximum);
  for (std::size_t j = begin; j < end; j += kLanes) {
    VF s = hn::Load(d, p + j);
    if constexpr (kScaled) {
      if (scales.k != nullptr) s = hn::Mul(s, hn::Load(d, scales.k + j));
    }
    if (j < seen.from || j + kLanes > seen.to) {
      const VF token = hn::Add(hn::Iota(d, 0), hn::Set(d, static_cast<float>(j)));
      const auto in = hn::And(hn::Ge(token, hn::Set(d, static_cast<float>(seen.from))),
                              hn::Lt(token, hn::Set(d, static_cast<float>(seen.to))));
      s = hn::IfThenElse(in, s, hn::Set(d, kNoMaximum));
    }
    hn::Store(s, d, p + j);
    max = hn::Max(max, s);
  }
  const float old_max = state[columns];
  const float new_max = std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, max)));
  if (new_max != old_max) {
    Rescale(state, columns, ScalarExp2(old_max - new_max));
    state[columns] = new_max;
  }
  const VF subtrahend = hn::Set(d, new_max);
  float* const sums = state + columns + kStrip;
  for (std::size_t j = begin; j < end; j += kLanes) {
    const VF weight = Exp2(hn::Sub(hn::Load(d, p + j), subtrahend));
    float* const sum = sums + j % kStrip;
    hn::Store(hn::Add(hn::Load(d, sum), weight), d, sum);
    if constexpr (kScaled) {
      hn::Store(hn::Mul(weight, hn::Load(d, scales.v + j)), d, p + j);
    } else {
      hn::Store(weight, d, p + j);
    }
  }
}

// Adds p[row][j] * v[j] to kWidth * 16 columns of each state, from `column` on, for j in [begin,
// end) in ascending order. Token j is at strips[j / 16] + (j mod 16) * stride.
template <typename T, std::size_t kRows, std::size_t kWidth, typename Fetch>
HWY_INLINE void AddColumns(const float* HWY_RESTRICT p, const T* const* strips, std::size_t column,
                           std::int64_t stride, std::size_t begin, std::size_t end, Fetch& fetch,
                           float* HWY_RESTRICT states, std::size_t state_floats) {
  const DF d;
  constexpr std::size_t kCount = kWidth * kRegisters;
  VF acc[kRows][kCount];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCount; ++c) {
      acc[r][c] = hn::Load(d, states + r * state_floats + column + c * kLanes);
    }
  }
  for (std::size_t j = begin; j < end;) {
    const T* v = strips[j / kStrip] + static_cast<std::int64_t>(j % kStrip) * stride + column;
    const std::size_t stop = std::min(end, (j / kStrip + 1) * kStrip);
    for (; j < stop; ++j, v += stride) {
      fetch.Step();
      VF x[kCount];
      for (std::size_t c = 0; c < kCount; ++c) x[c] = LoadWide(v + c * kLanes);
      for (std::size_t r = 0; r < kRows; ++r) {
        const VF weight = hn::Set(d, p[r * kTile + j]);
        for (std::size_t c = 0; c < kCount; ++c) acc[r][c] = hn::MulAdd(weight, x[c], acc[r][c]);
      }
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCount; ++c) {
      hn::Store(acc[r][c], d, states + r * state_floats + column + c * kLanes);
    }
  }
}

template <typename T, std::size_t kRows, typename Fetch>
HWY_INLINE void AddValues(const float* HWY_RESTRICT p, const T* const* strips, std::size_t columns,
                          std::int64_t stride, std::size_t begin, std::size_t end, Fetch& fetch,
                          float* HWY_RESTRICT states, std::size_t state_floats) {
  if (begin >= end) return;
  constexpr std::size_t kWidth = kBlockWidth<kRows>;
  std::size_t i = 0;
  for (; i + kWidth * kStrip <= columns; i += kWidth * kStrip) {
    AddColumns<T, kRows, kWidth>(p, strips, i, stride, begin, end, fetch, states, state_floats);
  }
  for (; i < columns; i += kStrip) {
    AddColumns<T, kRows, 1>(p, strips, i, stride, begin, end, fetch, states, state_floats);
  }
}

// Adds values like AddValues, but for one row of a block. It is used for tokens that only some rows
// of the block see.
template <typename T, typename Fetch>
HWY_NOINLINE void AddValuesOfRow(const float* p, const T* const* strips, std::size_t columns,
                                 std::int64_t stride, std::size_t begin, std::size_t end,
                                 Fetch& fetch, float* state) {
  AddValues<T, 1>(p, strips, columns, stride, begin, end, fetch, state, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggle
