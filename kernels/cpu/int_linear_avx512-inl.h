// The integer linear of the AVX-512 levels, with or without dot product instructions. Included by
// one unit per level; everything here has internal linkage, see int_linear.h. `Isa` says how 4
// bytes are multiplied:
//
//   Weights Widen(__m512i u);                              64 unsigned bytes, prepared for Dot
//   Inputs Spread(const std::int8_t* a);                   4 signed bytes, in every lane
//   void Dot(__m512i& acc, Weights w, Inputs a);           acc += sum of 4 products, per lane
//   kTilePanels                                            of the tile of 8 rows
//   ForInt4                                                the Isa of 4-bit weights
//
// Up to 8 rows: one panel after the other, all rows in one tile, so that memory is one stream per
// thread. More rows: kTilePanels panels at a time; of them 64 rows; of those a part of K, small
// enough for the first cache; of that the blocks of rows. A tile keeps its integer sums in
// registers; sums of f32 live in memory, for there are not enough registers for both.

#include <immintrin.h>

#include "kernels/cpu/int_linear.h"

namespace quire::kernels::internal {
namespace {

#define QUIRE_INLINE inline __attribute__((always_inline))

constexpr std::uint32_t kPanel = 16;
constexpr std::uint32_t kRowsAtOnce = 64;
constexpr std::uint32_t kFewRows = 8;
// Inputs of a part of K: a multiple of every group.
constexpr std::uint32_t kPart = 512;
// How far ahead of one stream its memory is fetched.
constexpr std::int64_t kAheadBytes = 4096;
constexpr std::int64_t kAheadScaleBytes = 512;

QUIRE_INLINE std::uint32_t Least(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

// Rows of the block that starts where `rows_left` rows are left.
QUIRE_INLINE std::uint32_t BlockRows(std::uint32_t rows_left) {
  return rows_left >= 8 ? 8 : rows_left >= 4 ? 4 : rows_left >= 2 ? 2 : 1;
}

QUIRE_INLINE __mmask16 FirstLanes(std::uint32_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}

// Largest |x| as bits: numbers in order, then infinity, then NaN.
template <bool kWhole>
QUIRE_INLINE std::uint32_t LargestBits(const float* x, std::uint32_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (std::uint32_t i = 0; i < count; i += 16) {
    const __m512 values =
        kWhole ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(FirstLanes(count - i), x + i);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(values), magnitude));
  }
  return _mm512_reduce_max_epu32(largest);
}

// `count` inputs into their places, 4 bytes every `step` bytes. Returns their sum. kWhole: count is
// a multiple of 16. An inverse of 0 makes everything 0, NaN included.
template <bool kWhole>
QUIRE_INLINE std::int32_t PutInputs(const float* x, std::uint32_t count, float inverse,
                                    std::uint32_t step, std::int8_t* q) {
  const __m512 factor = _mm512_set1_ps(inverse);
  const __mmask16 any = inverse == 0 ? __mmask16{0} : __mmask16{0xffff};
  __m512i sum = _mm512_setzero_si512();
  for (std::uint32_t i = 0; i < count; i += 16) {
    const auto lanes = kWhole ? any : static_cast<__mmask16>(any & FirstLanes(count - i));
    const __m512i values = _mm512_maskz_cvtps_epi32(
        lanes, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor));
    sum = _mm512_add_epi32(sum, values);
    const __m128i bytes = _mm512_cvtepi32_epi8(values);
    const std::uint32_t units = kWhole ? 4 : (Least(count - i, 16) + 3) / 4;
    if (kWhole && step == 4) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q), bytes);
    } else {
      _mm_storeu_si32(q, bytes);
      if (units > 1) _mm_storeu_si32(q + step, _mm_srli_si128(bytes, 4));
      if (units > 2) _mm_storeu_si32(q + 2 * step, _mm_srli_si128(bytes, 8));
      if (units > 3) _mm_storeu_si32(q + 3 * step, _mm_srli_si128(bytes, 12));
    }
    q += 4 * step;
  }
  return _mm512_reduce_add_epi32(sum);
}

struct RowPlace {
  std::uint32_t first;  // row of the block
  std::uint32_t count;  // rows of it
};

QUIRE_INLINE RowPlace PlaceOf(std::uint32_t row, std::uint32_t num_rows) {
  RowPlace place = {row / 8 * 8, 0};
  place.count = BlockRows(num_rows - place.first);
  while (place.first + place.count <= row) {
    place.first += place.count;
    place.count = BlockRows(num_rows - place.first);
  }
  return place;
}

// 16 groups at a time: finding, dividing and placing apart keeps their latencies from adding up.
template <bool kWhole>
QUIRE_INLINE void QuantizeOneRow(const float* x, std::uint32_t k, std::uint32_t group,
                                 std::uint32_t step, std::int8_t* q, float* scales,
                                 std::int32_t* sums) {
  const std::uint32_t wide = group < 32 ? 32 : group;
  const std::uint32_t wides = (k + wide - 1) / wide;
  alignas(64) std::uint32_t bits[16] = {};
  alignas(64) float inverses[16];
  for (std::uint32_t w0 = 0; w0 < wides; w0 += 16) {
    const std::uint32_t count = Least(16, wides - w0);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t k0 = (w0 + i) * wide;
      bits[i] = LargestBits<kWhole>(x + k0, Least(wide, k - k0));
    }
    const __m512i largest_bits = _mm512_load_si512(bits);
    const __m512 largest = _mm512_castsi512_ps(largest_bits);
    const __mmask16 finite =
        _mm512_cmplt_epu32_mask(largest_bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 used =
        _mm512_mask_cmp_ps_mask(finite, largest, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m512 steps = _mm512_set1_ps(127.0f);
    const __m512 scale = _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_nanf("")), finite,
                                            _mm512_maskz_div_ps(used, largest, steps));
    _mm512_mask_storeu_ps(scales + w0, FirstLanes(count), scale);
    _mm512_store_ps(inverses, _mm512_maskz_div_ps(used, steps, largest));
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t end = Least((w0 + i + 1) * wide, k);
      for (std::uint32_t k0 = (w0 + i) * wide; k0 < end; k0 += group) {
        *sums++ = PutInputs<kWhole>(x + k0, Least(group, end - k0), inverses[i], step,
                                    q + static_cast<std::int64_t>(k0) / 4 * step);
      }
    }
  }
}

void Quantize(const float* x, std::int64_t x_stride, std::uint32_t k, std::uint32_t group,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  const std::int64_t k_padded = (k + 3) / 4 * 4;
  const std::uint32_t wide = group < 32 ? 32 : group;
  const std::int64_t wides = (k + wide - 1) / wide;
  for (std::uint32_t row = row_begin; row < row_end; ++row) {
    const RowPlace place = PlaceOf(row, num_rows);
    const float* const in = x + static_cast<std::int64_t>(row) * x_stride;
    std::int8_t* const q = rows.q + place.first * k_padded + (row - place.first) * 4;
    float* const scales = rows.scales + row * wides;
    std::int32_t* const sums = rows.sums + static_cast<std::int64_t>(row) * (k / group);
    if (group % 16 == 0) {
      QuantizeOneRow<true>(in, k, group, place.count * 4, q, scales, sums);
    } else {
      QuantizeOneRow<false>(in, k, group, place.count * 4, q, scales, sums);
    }
  }
}

// Where a tile works.
struct Place {
  std::uint32_t row;         // first
  std::uint32_t k0, k1;      // part of K
  std::int64_t panel;        // first
  std::uint32_t pass;        // of the blocks of rows over the part
  std::uint32_t passes;      // how many there are
};

// The quantised inputs of R rows, which are one block of 8, or a block of 4, one of 2 and one of 1
// as R has them.
template <int R>
struct Inputs {
  const std::int8_t* block;  // of 8 or 4 rows
  const std::int8_t* two;
  const std::int8_t* one;

  static QUIRE_INLINE Inputs At(const IntLinearArgs& args, const Place& at, std::uint32_t k) {
    const std::int64_t row_bytes = (args.k + 3) / 4 * 4;
    const std::int8_t* const first = args.x.q + at.row * row_bytes;
    return {first + static_cast<std::int64_t>(k) * (R == 8 ? 8 : 4),
            first + (R & 4) * row_bytes + static_cast<std::int64_t>(k) * 2,
            first + (R & 6) * row_bytes + k};
  }
  QUIRE_INLINE const std::int8_t* Row(int r) const {
    if (R == 8 || r < (R & 4)) return block + r * 4;
    if (r < (R & 6)) return two + (r - (R & 4)) * 4;
    return one;
  }
  // To the next 4 inputs.
  QUIRE_INLINE void Advance() {
    block += R == 8 ? 32 : 16;
    two += 8;
    one += 4;
  }
};

// What is fetched while a tile reads the bytes from `offset` on of its panels. One panel: what
// follows it in memory. More: the next part of the same panel, beyond its end the beginning of the
// same panel of the next group; the blocks of rows share the panels out.
template <int P>
QUIRE_INLINE void FindAhead(const IntLinearArgs& args, const Place& at, std::int64_t offset,
                            std::int64_t (&ahead)[P]) {
  if constexpr (P == 1) {
    ahead[0] = kAheadBytes;
  } else {
    std::int64_t distance = args.is_int4 ? kPart * 8 : kPart * 16;
    if (offset + distance >= args.panel_bytes) distance += (P - 1) * args.panel_bytes;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      ahead[p] = static_cast<std::uint32_t>(p) % at.passes == at.pass ? distance : 0;
    }
  }
}

// acc[R][P] += the products of `units` x 64 bytes of each panel with the rows' inputs.
template <class Isa, int R, int P, bool kInt4>
QUIRE_INLINE void AddProducts(__m512i (&acc)[R * P], const std::uint8_t* w,
                              std::int64_t panel_bytes, const std::int64_t (&ahead)[P],
                              Inputs<R> inputs, std::uint32_t units) {
  const __m512i low = _mm512_set1_epi8(15);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    __m512i u[P];
    typename Isa::Weights weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const std::uint8_t* const at = w + p * panel_bytes;
      u[p] = _mm512_load_si512(at);
      _mm_prefetch(reinterpret_cast<const char*>(at + ahead[p]), _MM_HINT_T0);
      weights[p] = Isa::Widen(kInt4 ? _mm512_and_si512(u[p], low) : u[p]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Isa::Inputs spread = Isa::Spread(inputs.Row(r));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) Isa::Dot(acc[r * P + p], weights[p], spread);
    }
    inputs.Advance();
    if constexpr (kInt4) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        weights[p] = Isa::Widen(_mm512_and_si512(_mm512_srli_epi16(u[p], 4), low));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Isa::Inputs spread = Isa::Spread(inputs.Row(r));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) Isa::Dot(acc[r * P + p], weights[p], spread);
      }
      inputs.Advance();
    }
    w += 64;
  }
}

// (total + bias) + residual of one row and panel.
QUIRE_INLINE void Finish(const IntLinearArgs& args, std::uint32_t row, std::int64_t panel,
                         __m512 total) {
  const std::int64_t n = panel * kPanel;
  const __mmask16 lanes = FirstLanes(args.n - static_cast<std::uint32_t>(n));
  if (args.bias != nullptr) {
    total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(lanes, args.bias + n));
  }
  if (args.residual != nullptr) {
    total = _mm512_add_ps(
        total, _mm512_maskz_loadu_ps(lanes, args.residual + row * args.residual_stride + n));
  }
  _mm512_mask_storeu_ps(args.y + row * args.y_stride + n, lanes, total);
}

template <class Isa, int R, int P>
__attribute__((noinline)) void PerFeatureTile(const IntLinearArgs& args, const Place& at,
                                              float* memory) {
  const std::uint8_t* const w = args.panels + at.panel * args.panel_bytes;
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
  FindAhead<P>(args, at, offset, ahead);
  AddProducts<Isa, R, P, false>(acc, w + offset, args.panel_bytes, ahead,
                                Inputs<R>::At(args, at, at.k0), (at.k1 - at.k0 + 3) / 4);
  if (at.k1 < args.k) {
#pragma GCC unroll 32
    for (int i = 0; i < R * P; ++i) _mm512_store_si512(memory + i * kPanel, acc[i]);
    return;
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const __m512 scale =
        _mm512_load_ps(static_cast<const float*>(args.scales) + (at.panel + p) * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::uint32_t row = at.row + static_cast<unsigned>(r);
      Finish(args, row, at.panel + p,
             _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r * P + p]),
                           _mm512_mul_ps(_mm512_set1_ps(args.x.scales[row]), scale)));
    }
  }
}

QUIRE_INLINE __m512 LoadF16(const std::uint16_t* values) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(values)));
}

// The scales of one group.
struct GroupScales {
  const std::uint16_t* weights;  // of the first panel
  std::int64_t panel_stride;
  const float* inputs;  // of the first row
  std::int64_t row_stride;
  const std::int32_t* sums;
  std::int64_t sums_stride;
};

// totals[R][P] += one group's products times its scales. Rows outside and panels inside keeps few
// values alive beside acc.
template <int R, int P, bool kMin>
QUIRE_INLINE void AddGroup(const GroupScales& group, const __m512i (&acc)[R * P], float* totals) {
  __m512 scale[P];
  __m512 min[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    scale[p] = LoadF16(group.weights + p * group.panel_stride);
    if constexpr (kMin) min[p] = LoadF16(group.weights + p * group.panel_stride + kPanel);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 a = _mm512_set1_ps(group.inputs[r * group.row_stride]);
    __m512 sum;
    if constexpr (kMin) {
      sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(group.sums[r * group.sums_stride]));
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      float* const at = totals + (r * P + p) * kPanel;
      __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r * P + p]),
                                     _mm512_mul_ps(a, scale[p]), _mm512_load_ps(at));
      if constexpr (kMin) total = _mm512_fmadd_ps(sum, _mm512_mul_ps(a, min[p]), total);
      _mm512_store_ps(at, total);
    }
  }
}

// -O * sum, where the integer sums of a group start.
template <int R, int P, bool kInt4, bool kMin>
QUIRE_INLINE void StartGroup(const GroupScales& group, __m512i (&acc)[R * P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m512i start = _mm512_setzero_si512();
    if constexpr (!kMin) {
      const __m512i sum = _mm512_set1_epi32(group.sums[r * group.sums_stride]);
      start = _mm512_sub_epi32(start, _mm512_slli_epi32(sum, kInt4 ? 3 : 7));
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) acc[r * P + p] = start;
  }
}

template <class Isa, int R, int P, bool kInt4, bool kMin>
__attribute__((noinline)) void PerGroupTile(const IntLinearArgs& args, const Place& at,
                                            float* totals) {
  if (at.k0 == 0) {
#pragma GCC unroll 32
    for (int i = 0; i < R * P; ++i) _mm512_store_ps(totals + i * kPanel, _mm512_setzero_ps());
  }
  constexpr std::uint32_t kGroupScales = kMin ? 2 * kPanel : kPanel;
  constexpr std::uint32_t kInputBytes = kInt4 ? 8 : 16;  // of a panel
  const std::uint32_t groups = args.k / args.group;
  const std::uint32_t wide = args.group < 32 ? 32 : args.group;
  const std::uint32_t wides = (args.k + wide - 1) / wide;
  const std::uint32_t first = at.k0 / args.group;
  const std::int64_t panel_stride = static_cast<std::int64_t>(groups) * kGroupScales;
  GroupScales scales = {static_cast<const std::uint16_t*>(args.scales) + at.panel * panel_stride +
                            first * kGroupScales,
                        panel_stride,
                        nullptr,
                        wides,
                        args.x.sums + static_cast<std::int64_t>(at.row) * groups + first,
                        groups};
  std::int64_t ahead[P];
  std::int64_t offset = static_cast<std::int64_t>(at.k0) * kInputBytes;
  FindAhead<P>(args, at, offset, ahead);
  for (std::uint32_t k = at.k0, g = first; k < at.k1; k += args.group, ++g) {
    scales.inputs = args.x.scales + static_cast<std::int64_t>(at.row) * wides +
                    (args.group < 32 ? g / 2 : g);
    __m512i acc[R * P];
    StartGroup<R, P, kInt4, kMin>(scales, acc);
    AddProducts<Isa, R, P, kInt4>(acc, args.panels + at.panel * args.panel_bytes + offset,
                                  args.panel_bytes, ahead, Inputs<R>::At(args, at, k),
                                  args.group / (kInt4 ? 8 : 4));
    // Keeps the compiler from holding totals in registers that it does not have.
    if constexpr (R * P > 12) asm volatile("" ::: "memory");
    if constexpr (P == 1) {
      _mm_prefetch(reinterpret_cast<const char*>(scales.weights) + kAheadScaleBytes, _MM_HINT_T0);
    }
    AddGroup<R, P, kMin>(scales, acc, totals);
    offset += args.group * kInputBytes;
    scales.weights += kGroupScales;
    ++scales.sums;
  }
  if (at.k1 < args.k) return;
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    for (int r = 0; r < R; ++r) {
      Finish(args, at.row + static_cast<unsigned>(r), at.panel + p,
             _mm512_load_ps(totals + (r * P + p) * kPanel));
    }
  }
}

enum class Form { kFeature, kInt8, kInt8Min, kInt4, kInt4Min };

template <class Isa, int R, int P, Form kForm>
QUIRE_INLINE void Tile(const IntLinearArgs& args, const Place& at, float* memory) {
  if constexpr (kForm == Form::kFeature) {
    PerFeatureTile<Isa, R, P>(args, at, memory);
  } else {
    constexpr bool kInt4 = kForm == Form::kInt4 || kForm == Form::kInt4Min;
    constexpr bool kMin = kForm == Form::kInt8Min || kForm == Form::kInt4Min;
    PerGroupTile<Isa, R, P, kInt4, kMin>(args, at, memory);
  }
}

// All of up to 8 rows from `row` on, one panel.
template <class Isa, Form kForm>
QUIRE_INLINE void FewRows(const IntLinearArgs& args, std::uint32_t row, std::uint32_t rows,
                          std::int64_t panel) {
  alignas(64) float memory[8 * kPanel];
  const Place at = {row, 0, args.k, panel, 0, 1};
  switch (rows) {
    case 8:
      return Tile<Isa, 8, 1, kForm>(args, at, memory);
    case 7:
      return Tile<Isa, 7, 1, kForm>(args, at, memory);
    case 6:
      return Tile<Isa, 6, 1, kForm>(args, at, memory);
    case 5:
      return Tile<Isa, 5, 1, kForm>(args, at, memory);
    case 4:
      return Tile<Isa, 4, 1, kForm>(args, at, memory);
    case 3:
      return Tile<Isa, 3, 1, kForm>(args, at, memory);
    case 2:
      return Tile<Isa, 2, 1, kForm>(args, at, memory);
    default:
      return Tile<Isa, 1, 1, kForm>(args, at, memory);
  }
}

// The rows [row_begin, row_end) of the part of K and the panels that `at` names.
template <class Isa, Form kForm>
QUIRE_INLINE void Blocks(const IntLinearArgs& args, Place at, std::uint32_t row_begin,
                         std::uint32_t row_end, float* memory) {
  constexpr int P = Isa::kTilePanels;
  at.pass = 0;
  for (at.row = row_begin; at.row < row_end; ++at.pass) {
    const std::uint32_t rows = BlockRows(row_end - at.row);
    float* const own = memory + (at.row - row_begin) * P * kPanel;
    if (rows == 8) {
      Tile<Isa, 8, P, kForm>(args, at, own);
    } else if (rows == 4) {
      Tile<Isa, 4, P, kForm>(args, at, own);
    } else if (rows == 2) {
      Tile<Isa, 2, P, kForm>(args, at, own);
    } else {
      Tile<Isa, 1, P, kForm>(args, at, own);
    }
    at.row += rows;
  }
}

// All rows of kTilePanels panels.
template <class Isa, Form kForm>
QUIRE_INLINE void ManyRows(const IntLinearArgs& args, std::int64_t panel) {
  alignas(64) float memory[kRowsAtOnce * Isa::kTilePanels * kPanel];
  for (std::uint32_t row = 0; row < args.num_rows; row += kRowsAtOnce) {
    const std::uint32_t row_end = Least(row + kRowsAtOnce, args.num_rows);
    const std::uint32_t rest = (row_end - row) % 8;
    Place at{};
    at.panel = panel;
    at.passes = (row_end - row) / 8 + (rest >> 2) + (rest >> 1 & 1) + (rest & 1);
    for (at.k0 = 0; at.k0 < args.k; at.k0 = at.k1) {
      at.k1 = Least(at.k0 + kPart, args.k);
      Blocks<Isa, kForm>(args, at, row, row_end, memory);
    }
  }
}

template <class Isa, Form kForm>
void Panels(const IntLinearArgs& args, std::int64_t panel, std::int64_t panel_end) {
  if (args.num_rows > kFewRows) {
    for (; panel + Isa::kTilePanels <= panel_end; panel += Isa::kTilePanels) {
      ManyRows<Isa, kForm>(args, panel);
    }
  }
  for (; panel < panel_end; ++panel) {
    for (std::uint32_t row = 0; row < args.num_rows; row += 8) {
      FewRows<Isa, kForm>(args, row, Least(args.num_rows - row, 8), panel);
    }
  }
}

template <class Isa>
void Linear(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  if (args.is_int4) {
    using Int4 = typename Isa::ForInt4;
    if (args.has_min) return Panels<Int4, Form::kInt4Min>(args, panel_begin, panel_end);
    return Panels<Int4, Form::kInt4>(args, panel_begin, panel_end);
  }
  if (args.scale_per_feature) return Panels<Isa, Form::kFeature>(args, panel_begin, panel_end);
  if (args.has_min) return Panels<Isa, Form::kInt8Min>(args, panel_begin, panel_end);
  Panels<Isa, Form::kInt8>(args, panel_begin, panel_end);
}

#undef QUIRE_INLINE

}  // namespace
}  // namespace quire::kernels::internal
