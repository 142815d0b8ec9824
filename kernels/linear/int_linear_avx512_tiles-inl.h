// Tiles of the integer linear kernel for AVX-512: products of some rows of activations and some
// panels of weights. int_linear_avx512-inl.h includes this file and describes `Isa`.
//
// With one scale per feature, a tile is 8 rows by up to 3 panels and keeps the integer sums of a
// part of K in registers. With groups it has 4 rows by up to 3 panels, or up to 8 rows by one
// panel. Integer sums and totals then both stay in registers over all of K. On Zen 4 a 512-bit
// store costs as much as 1.2 to 1.6 dot product instructions.

#pragma once

#include <immintrin.h>

#include "kernels/linear/int_linear.h"
#include "kernels/linear/int_linear_avx512_base-inl.h"

namespace quire::kernels::internal {
namespace {

// Number of inputs of a part of K.
constexpr std::uint32_t kPart = 512;
// Prefetch distances in bytes, for a stream of weights and a stream of scales.
constexpr std::int64_t kPrefetchBytes = 4096;
constexpr std::int64_t kPrefetchScaleBytes = 512;

// Numbers and sizes of groups. They are computed once per call, because a division costs as much as
// the products of a group.
struct Groups {
  std::uint32_t count;       // groups of weights in a row
  std::uint32_t wide_count;  // groups of activations in a row
  std::uint32_t wide_shift;  // index of an activation group = index of a weight group >> wide_shift
  std::uint32_t lines;       // 64-byte lines of one group in a panel

  static Groups Of(const IntLinearArgs& args) {
    const std::uint32_t count = args.k / args.group;
    const std::uint32_t shift = args.group < 32 ? 1 : 0;
    return {count, (count + shift) >> shift, shift, args.group / (args.is_int4 ? 8 : 4)};
  }
};

// The position of a tile.
struct Place {
  std::uint32_t row;         // first row
  std::uint32_t block;       // first row of the block of rows that contains `row` (IntRows)
  std::uint32_t block_rows;  // rows of that block
  std::uint32_t k0, k1;      // inputs [k0, k1) of the part of K
  std::int64_t panel;        // first panel
  std::uint32_t pass;        // index among the tiles that share the panels
  std::uint32_t passes;      // number of these tiles, each of which has different rows
  // With groups: number of lines of the next panels that each of these tiles prefetches, in total
  // and per group.
  std::uint32_t next_lines, next_lines_of_group;
};

// The quantized inputs of R rows in the blocks of IntRows. For R = 8 the rows are a block of 8. For
// R = 4 they are 4 rows of a block of 8 or 4. For other R they are the blocks of 4, 2 and 1 that
// add up to R.
template <int R>
struct Inputs {
  const std::int8_t* block;  // the block of 8 or 4 rows
  std::int64_t block_step;
  const std::int8_t* two;
  const std::int8_t* one;

  static QUIRE_INLINE Inputs At(const IntLinearArgs& args, const Place& at, std::uint32_t k) {
    const std::int64_t row_bytes = (args.k + 3) / 4 * 4;
    const std::int8_t* const first = args.x.q + at.row * row_bytes;
    return {args.x.q + at.block * row_bytes + (at.row - at.block) * 4 +
                static_cast<std::int64_t>(k) * at.block_rows,
            static_cast<std::int64_t>(at.block_rows) * 4,
            first + (R & 4) * row_bytes + static_cast<std::int64_t>(k) * 2,
            first + (R & 6) * row_bytes + k};
  }
  QUIRE_INLINE const std::int8_t* Row(int r) const {
    if (R == 8 || r < (R & 4)) return block + r * 4;
    if (r < (R & 6)) return two + (r - (R & 4)) * 4;
    return one;
  }
  // Advances to the next 4 inputs.
  QUIRE_INLINE void Advance() {
    block += block_step;
    two += 8;
    one += 4;
  }
};

QUIRE_INLINE void Fetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0);
}

// Adds the products of 4 inputs to acc[R][P].
template <class Isa, int R, int P>
QUIRE_INLINE void AddUnit(__m512i (&acc)[R * P], const typename Isa::Weights (&weights)[P],
                          Inputs<R>& inputs) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Isa::Inputs spread = Isa::Spread(inputs.Row(r));
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) Isa::Dot(acc[r * P + p], weights[p], spread);
  }
  inputs.Advance();
}

// Adds the products of `lines` lines of each panel to acc[R][P]. A line has 4 inputs per feature,
// or 8 with 4-bit weights. With kFetch, each line also prefetches the line ahead[p] bytes later.
template <class Isa, int R, int P, bool kInt4, bool kFetch>
QUIRE_INLINE void AddLines(__m512i (&acc)[R * P], const std::uint8_t* w, std::int64_t panel_bytes,
                           const std::int64_t (&ahead)[P], Inputs<R>& inputs, std::uint32_t lines) {
  const __m512i low = _mm512_set1_epi8(15);
  for (std::uint32_t line = 0; line < lines; ++line) {
    typename Isa::Weights weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const std::uint8_t* const at = w + p * panel_bytes;
      const __m512i u = _mm512_load_si512(at);
      if constexpr (kFetch) Fetch(at + ahead[p]);
      weights[p] = Isa::Widen(kInt4 ? _mm512_and_si512(u, low) : u);
    }
    AddUnit<Isa, R, P>(acc, weights, inputs);
    if constexpr (kInt4) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512i u = _mm512_load_si512(w + p * panel_bytes);
        weights[p] = Isa::Widen(_mm512_and_si512(_mm512_srli_epi16(u, 4), low));
      }
      AddUnit<Isa, R, P>(acc, weights, inputs);
    }
    w += 64;
  }
}

// Computes y = (total + bias) + residual for R rows and P panels.
template <int R, int P>
QUIRE_INLINE void Finish(const IntLinearArgs& args, const Place& at, __m512 (&totals)[R * P]) {
  const std::int64_t n = at.panel * kPanel;
  const __mmask16 lanes = FirstLanes(args.n - static_cast<std::uint32_t>(n + (P - 1) * kPanel));
  const auto load = [&](int p, const float* from) __attribute__((always_inline)) {
    return p + 1 < P ? _mm512_loadu_ps(from + p * kPanel)
                     : _mm512_maskz_loadu_ps(lanes, from + p * kPanel);
  };
  if (args.bias != nullptr) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const __m512 bias = load(p, args.bias + n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) totals[r * P + p] = _mm512_add_ps(totals[r * P + p], bias);
    }
  }
  if (args.residual != nullptr) {
    const float* residual = args.residual + at.row * args.residual_stride + n;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        totals[r * P + p] = _mm512_add_ps(totals[r * P + p], load(p, residual));
      }
      residual += args.residual_stride;
    }
  }
  float* y = args.y + at.row * args.y_stride + n;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p + 1 < P; ++p) _mm512_storeu_ps(y + p * kPanel, totals[r * P + p]);
    float* const last = y + (P - 1) * kPanel;
    if (lanes == 0xffff) {
      _mm512_storeu_ps(last, totals[r * P + P - 1]);
    } else {
      _mm512_mask_storeu_ps(last, lanes, totals[r * P + P - 1]);
    }
    y += args.y_stride;
  }
}

// Computes the prefetch distances of a tile that reads its panels from byte `offset` on. A tile of
// one panel prefetches the memory that follows. A tile of P panels prefetches the next part of each
// panel. After the last part it prefetches the first part of the panel that is P panels further on.
// The tiles of different rows each prefetch some of the panels.
template <int P>
QUIRE_INLINE void FindPrefetchDistances(const IntLinearArgs& args, const Place& at,
                                        std::int64_t offset, std::int64_t (&ahead)[P]) {
  if constexpr (P == 1) {
    ahead[0] = kPrefetchBytes;
  } else {
    std::int64_t distance = kPart * kPanel;
    if (offset + distance >= args.panel_bytes) distance += (P - 1) * args.panel_bytes;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      ahead[p] = static_cast<std::uint32_t>(p) % at.passes == at.pass ? distance : 0;
    }
  }
}

template <class Isa, int R, int P>
__attribute__((noinline)) void PerFeatureTile(const IntLinearArgs& args, const Place& at,
                                              float* memory) {
  __m512i acc[R * P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512i start = _mm512_set1_epi32(-128 * args.x.sums[at.row + static_cast<unsigned>(r)]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      acc[r * P + p] = at.k0 == 0 ? start : _mm512_load_si512(memory + (r * P + p) * kPanel);
    }
  }
  std::int64_t ahead[P];
  const std::int64_t offset = static_cast<std::int64_t>(at.k0) * kPanel;
  FindPrefetchDistances<P>(args, at, offset, ahead);
  Inputs<R> inputs = Inputs<R>::At(args, at, at.k0);
  AddLines<Isa, R, P, false, true>(acc, args.panels + at.panel * args.panel_bytes + offset,
                                   args.panel_bytes, ahead, inputs, (at.k1 - at.k0 + 3) / 4);
  if (at.k1 < args.k) {
#pragma GCC unroll 32
    for (int i = 0; i < R * P; ++i) _mm512_store_si512(memory + i * kPanel, acc[i]);
    return;
  }
  __m512 totals[R * P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const __m512 scale =
        _mm512_load_ps(static_cast<const float*>(args.scales) + (at.panel + p) * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(args.x.scales[at.row + static_cast<unsigned>(r)]);
      totals[r * P + p] =
          _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r * P + p]), _mm512_mul_ps(a, scale));
    }
  }
  Finish<R, P>(args, at, totals);
}

QUIRE_INLINE __m512 LoadF16(const std::uint16_t* values) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(values)));
}

// Prefetches the next P panels, which follow in memory. The tiles that multiply different rows by
// the same panels each prefetch an equal share.
template <int P>
struct NextPanels {
  const std::uint8_t* line;
  std::uint32_t lines;  // lines per group
  const std::uint16_t* scales;
  std::int64_t panel_scales, group_scales;
  std::uint32_t turn, turns;  // this tile prefetches the scales of every `turns`-th group

  static QUIRE_INLINE NextPanels Of(const IntLinearArgs& args, const Groups& groups,
                                    const Place& at, std::uint32_t group_scales) {
    const std::int64_t panel_scales = std::int64_t{groups.count} * group_scales;
    return {args.panels + (at.panel + P) * args.panel_bytes +
                std::int64_t{at.pass} * at.next_lines * 64,
            at.next_lines_of_group,
            static_cast<const std::uint16_t*>(args.scales) + (at.panel + P) * panel_scales,
            panel_scales,
            group_scales,
            at.pass,
            at.passes};
  }
  QUIRE_INLINE void FetchGroup() {
    for (std::uint32_t i = 0; i < lines; ++i) {
      Fetch(line);
      line += 64;
    }
    if (turn == 0) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) Fetch(scales + p * panel_scales);
      turn = turns;
    }
    --turn;
    scales += group_scales;
  }
};

// The scales and sums of a group.
struct Group {
  const std::uint16_t* scales;  // scales of the weights in the first panel, then their mins
  std::int64_t panel_scales;    // distance between panels
  const float* row_scales;      // scale of the activations in the first row
  std::int64_t row_scales_stride;
  const std::int32_t* sums;
  std::int64_t sums_stride;
  // Lanes whose min is multiplied by the scale: all with has_zero_points, otherwise none.
  __mmask16 scaled_mins;
};

// Prepares the scale of a weight for ScaleProduct.
template <bool kPowers>
QUIRE_INLINE __m512 PrepareScale(__m512 scale) {
  if constexpr (!kPowers) return scale;
  const __m512i one = _mm512_castps_si512(_mm512_set1_ps(1.0f));
  return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(scale), one));
}

// Returns a * scale. With kPowers, `a` is a power of two, as for activations of 4-bit weights
// (IntRows). The exponents are then added as integers. Every execution port adds integers, but
// multiplications need the ports of the dot products.
template <bool kPowers>
QUIRE_INLINE __m512 ScaleProduct(__m512 a, __m512 prepared) {
  if constexpr (!kPowers) return _mm512_mul_ps(a, prepared);
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(prepared)));
}

// Adds a group's products, multiplied by its scales, to totals[R][P].
template <int R, int P, bool kInt4, bool kMin>
QUIRE_INLINE void AddGroup(const Group& group, const __m512i (&acc)[R * P],
                           __m512 (&totals)[R * P]) {
  // With mins there are too few registers for prepared scales.
  constexpr bool kPowers = kInt4 && !kMin;
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const std::uint16_t* const scales = group.scales + p * group.panel_scales;
    const __m512 scale = LoadF16(scales);
    __m512 min;
    if constexpr (kMin) {
      min = LoadF16(scales + kPanel);
      min = _mm512_mask_mul_ps(min, group.scaled_mins, min, scale);
    }
    const __m512 prepared = PrepareScale<kPowers>(scale);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(group.row_scales[r * group.row_scales_stride]);
      __m512& total = totals[r * P + p];
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r * P + p]),
                              ScaleProduct<kPowers>(a, prepared), total);
      if constexpr (kMin) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(group.sums[r * group.sums_stride]));
        total = _mm512_fmadd_ps(sum, _mm512_mul_ps(a, min), total);
      }
    }
  }
}

// Sets the integer sums of a group to their initial value, -O * sum (int_linear.h).
template <int R, int P, bool kInt4, bool kMin>
QUIRE_INLINE void StartGroup(const Group& group, __m512i (&acc)[R * P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512i start =
        kMin ? _mm512_setzero_si512()
             : _mm512_set1_epi32(group.sums[r * group.sums_stride] * (kInt4 ? -8 : -128));
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) acc[r * P + p] = start;
  }
}

template <class Isa, int R, int P, bool kInt4, bool kMin>
__attribute__((noinline)) void PerGroupTile(const IntLinearArgs& args, const Groups& groups,
                                            const Place& at) {
  constexpr std::uint32_t kGroupScales = kMin ? 2 * kPanel : kPanel;
  const float* const row_scales =
      args.x.scales + static_cast<std::int64_t>(at.row) * groups.wide_count;
  const std::int64_t panel_scales = std::int64_t{groups.count} * kGroupScales;
  Group group = {static_cast<const std::uint16_t*>(args.scales) + at.panel * panel_scales,
                 panel_scales,
                 row_scales,
                 groups.wide_count,
                 args.x.sums + static_cast<std::int64_t>(at.row) * groups.count,
                 groups.count,
                 static_cast<__mmask16>(args.has_zero_points ? 0xffff : 0)};
  const std::uint8_t* w = args.panels + at.panel * args.panel_bytes;
  const std::int64_t ahead[P] = {kPrefetchBytes};
  auto next = NextPanels<P>::Of(args, groups, at, kGroupScales);
  Inputs<R> inputs = Inputs<R>::At(args, at, 0);
  __m512 totals[R * P];
#pragma GCC unroll 32
  for (int i = 0; i < R * P; ++i) totals[i] = _mm512_setzero_ps();
  for (std::uint32_t g = 0; g < groups.count; ++g) {
    group.row_scales = row_scales + (g >> groups.wide_shift);
    __m512i acc[R * P];
    StartGroup<R, P, kInt4, kMin>(group, acc);
    AddLines<Isa, R, P, kInt4, P == 1>(acc, w, args.panel_bytes, ahead, inputs, groups.lines);
    w += groups.lines * 64;
    if constexpr (P == 1) {
      Fetch(reinterpret_cast<const char*>(group.scales) + kPrefetchScaleBytes);
    } else {
      next.FetchGroup();
    }
    AddGroup<R, P, kInt4, kMin>(group, acc, totals);
    group.scales += kGroupScales;
    ++group.sums;
  }
  Finish<R, P>(args, at, totals);
}

}  // namespace
}  // namespace quire::kernels::internal
