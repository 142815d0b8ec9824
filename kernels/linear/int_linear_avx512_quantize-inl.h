// Quantizes activations with AVX-512 (int_linear.h). Included by int_linear_avx512-inl.h.

#pragma once

#include <immintrin.h>

#include "kernels/linear/int_linear.h"
#include "kernels/linear/int_linear_avx512_base-inl.h"

namespace quire::kernels::internal {
namespace {

// Returns the bits of the largest |x|. As integers they have the order of the magnitudes, with
// infinity above all numbers and NaN above infinity.
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

// Quantizes `count` inputs and writes 4 bytes every `step` bytes. Returns the sum of the quantized
// values. kWhole means that count is a multiple of 16. If `inverse` is 0, all values become 0,
// including NaN.
template <bool kWhole>
QUIRE_INLINE std::int32_t PutInputs(const float* x, std::uint32_t count, float inverse,
                                    std::uint32_t step, std::int8_t* q) {
  const __m512 factor = _mm512_set1_ps(inverse);
  const __mmask16 any = inverse == 0 ? __mmask16{0} : __mmask16{0xffff};
  __m512i sum = _mm512_setzero_si512();
  for (std::uint32_t i = 0; i < count; i += 16) {
    const auto lanes = kWhole ? any : static_cast<__mmask16>(any & FirstLanes(count - i));
    const __m512i values =
        _mm512_maskz_cvtps_epi32(lanes, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor));
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

// Computes scales and inverses of 16 groups from their largest bits. Returns the mask of groups
// with non-zero values.
QUIRE_INLINE __mmask16 FactorsOf(__m512i largest_bits, bool is_int4, float* scales,
                                 float* inverses) {
  const __m512 largest = _mm512_castsi512_ps(largest_bits);
  const __m512 steps = _mm512_set1_ps(127.0f);
  // Compares bits, because the bits of NaN are larger than those of all other values.
  const __mmask16 in_bounds =
      _mm512_cmplt_epu32_mask(largest_bits, _mm512_castps_si512(_mm512_set1_ps(kActivationLimit)));
  const __mmask16 used =
      _mm512_mask_cmp_ps_mask(in_bounds, largest, _mm512_set1_ps(kMinActivation), _CMP_GE_OQ);
  __m512 scale = _mm512_div_ps(largest, steps);
  __m512 inverse = _mm512_div_ps(steps, largest);
  if (is_int4) {
    // Rounds up to a power of two. The exponents of scale and inverse add up to 2 * 127.
    const __m512i above = _mm512_add_epi32(_mm512_castps_si512(scale), _mm512_set1_epi32(0x7fffff));
    const __m512i power = _mm512_and_si512(above, _mm512_set1_epi32(0x7f800000));
    scale = _mm512_castsi512_ps(power);
    inverse = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(254 << 23), power));
  }
  const __m512 unused =
      _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_nanf("")), in_bounds, _mm512_set1_ps(1.0f));
  _mm512_store_ps(scales, _mm512_mask_mov_ps(unused, used, scale));
  _mm512_store_ps(inverses, _mm512_maskz_mov_ps(used, inverse));
  return used;
}

// Returns the number of activations that share a scale (IntRows), for this group of weights.
QUIRE_INLINE std::uint32_t ActivationGroup(std::uint32_t group) {
  return group < 32 ? 32 : group;
}
QUIRE_INLINE std::uint32_t NumActivationGroups(const RowQuantization& quantization) {
  const std::uint32_t activation_group = ActivationGroup(quantization.group);
  return (quantization.k + activation_group - 1) / activation_group;
}

// Quantizes a row, 16 groups at a time. Separate loops for the maximum, the division and the
// rounding let their latencies overlap.
template <bool kWhole>
QUIRE_INLINE void QuantizeOneRow(const float* x, const RowQuantization& quantization,
                                 std::uint32_t step, std::int8_t* q, float* scales,
                                 std::int32_t* sums) {
  const std::uint32_t k = quantization.k;
  const std::uint32_t group = quantization.group;
  const std::uint32_t activation_group = ActivationGroup(group);
  const std::uint32_t activation_groups = NumActivationGroups(quantization);
  alignas(64) std::uint32_t bits[16] = {};
  alignas(64) float factors[16];
  alignas(64) float inverses[16];
  for (std::uint32_t w0 = 0; w0 < activation_groups; w0 += 16) {
    const std::uint32_t count = Least(16, activation_groups - w0);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t k0 = (w0 + i) * activation_group;
      bits[i] = LargestBits<kWhole>(x + k0, Least(activation_group, k - k0));
    }
    FactorsOf(_mm512_load_si512(bits), quantization.is_int4, factors, inverses);
    _mm512_mask_storeu_ps(scales + w0, FirstLanes(count), _mm512_load_ps(factors));
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t end = Least((w0 + i + 1) * activation_group, k);
      for (std::uint32_t k0 = (w0 + i) * activation_group; k0 < end; k0 += group) {
        *sums++ = PutInputs<kWhole>(x + k0, Least(group, end - k0), inverses[i], step,
                                    q + static_cast<std::int64_t>(k0) / 4 * step);
      }
    }
  }
}

// Reduces the 128-bit lanes of two vectors with `join`. `low` has the lanes of rows 0 to 3, `high`
// those of rows 4 to 7. Returns the result of row r in 32-bit lane r.
template <class Join>
QUIRE_INLINE __m256i JoinLanes(__m512i low, __m512i high, Join join) {
  const __m512i halves =
      join(_mm512_shuffle_i32x4(low, high, 0x44), _mm512_shuffle_i32x4(low, high, 0xee));
  const __m512i all = join(halves, _mm512_shuffle_i32x4(halves, halves, 0xb1));
  return _mm512_castsi512_si256(_mm512_shuffle_i32x4(all, all, 0x08));
}

// Returns the largest value of row r in lane r.
template <int R>
QUIRE_INLINE __m256i LargestOfRows(const __m512i (&rows)[R]) {
  const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); };
  __m512i four[2] = {};
#pragma GCC unroll 2
  for (int i = 0; i < R / 4; ++i) {
    const __m512i* const row = rows + i * 4;
    const __m512i ab =
        larger(_mm512_unpacklo_epi32(row[0], row[1]), _mm512_unpackhi_epi32(row[0], row[1]));
    const __m512i cd =
        larger(_mm512_unpacklo_epi32(row[2], row[3]), _mm512_unpackhi_epi32(row[2], row[3]));
    four[i] = larger(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  return JoinLanes(four[0], four[1], larger);
}

// Quantizes and writes 16 inputs of R rows. Adds their sums to `sums`, which has four rows per
// vector.
template <int R>
QUIRE_INLINE void PutRows(const float* x, std::int64_t x_stride, const float* inverses,
                          std::int8_t* q, __m512i (&sums)[2]) {
  __m512i four[2] = {};
#pragma GCC unroll 2
  for (int i = 0; i < R / 4; ++i) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int r = i * 4 + j;
      v[j] = _mm512_cvtps_epi32(
          _mm512_mul_ps(_mm512_loadu_ps(x + r * x_stride), _mm512_set1_ps(inverses[r])));
    }
    // Each 128-bit lane has 4 inputs of row 0, then of rows 1, 2 and 3.
    four[i] = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), four[i]);
    sums[i] = _mm512_add_epi32(sums[i], _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  if constexpr (R == 4) {
    _mm512_storeu_si512(q, four[0]);
  } else {
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    _mm512_storeu_si512(q, _mm512_permutex2var_epi64(four[0], first, four[1]));
    _mm512_storeu_si512(q + 64, _mm512_permutex2var_epi64(four[0], second, four[1]));
  }
}

struct BlockOut {
  std::int8_t* q;
  float* scales;  // scales of the first row
  std::int64_t scales_stride;
  std::int32_t* sums;
  std::int64_t sums_stride;
};

// Quantizes a block of R rows. R is 8 or 4. REQUIRES: k % ActivationGroup(group) == 0 and group %
// 16 == 0.
template <int R>
__attribute__((noinline)) void QuantizeBlock(const float* x, std::int64_t x_stride,
                                             const RowQuantization& quantization,
                                             const BlockOut& out) {
  const std::uint32_t k = quantization.k;
  const std::uint32_t group = quantization.group;
  const std::uint32_t activation_group = ActivationGroup(group);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const auto add = [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); };
  alignas(64) float scales[16];  // FactorsOf writes 16 values
  alignas(64) float inverses[16];
  alignas(32) std::int32_t row_sums[8];
  for (std::uint32_t k0 = 0; k0 < k; k0 += activation_group) {
    __m512i largest[R] = {};
    for (std::uint32_t i = k0; i < k0 + activation_group; i += 16) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + r * x_stride + i));
        largest[r] = _mm512_max_epu32(largest[r], _mm512_and_si512(bits, magnitude));
      }
    }
    const auto used = static_cast<__mmask8>(FactorsOf(
        _mm512_zextsi256_si512(LargestOfRows<R>(largest)), quantization.is_int4, scales, inverses));
    for (int r = 0; r < R; ++r)
      out.scales[r * out.scales_stride + k0 / activation_group] = scales[r];
    for (std::uint32_t g0 = k0; g0 < k0 + activation_group; g0 += group) {
      __m512i sums[2] = {};
      for (std::uint32_t i = g0; i < g0 + group; i += 16) {
        PutRows<R>(x + i, x_stride, inverses, out.q + static_cast<std::int64_t>(i) * R, sums);
      }
      _mm256_store_si256(reinterpret_cast<__m256i*>(row_sums),
                         _mm256_maskz_mov_epi32(used, JoinLanes(sums[0], sums[1], add)));
      for (int r = 0; r < R; ++r) out.sums[r * out.sums_stride + g0 / group] = row_sums[r];
    }
    for (int r = 0; r < R; ++r) {
      if ((used >> r & 1) != 0) continue;
      for (std::uint32_t i = k0; i < k0 + activation_group; i += 4) {
        _mm_storeu_si32(out.q + static_cast<std::int64_t>(i) * R + r * 4, _mm_setzero_si128());
      }
    }
  }
}

void Quantize(const float* x, std::int64_t x_stride, const RowQuantization& quantization,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  const std::uint32_t k = quantization.k;
  const std::uint32_t group = quantization.group;
  const std::int64_t k_padded = (k + 3) / 4 * 4;
  const std::int64_t activation_groups = NumActivationGroups(quantization);
  const std::int64_t groups = k / group;
  std::uint32_t block = 0;
  for (std::uint32_t row = row_begin; row < row_end; row += block) {
    block = BlockRows(num_rows - row);
    const float* const in = x + static_cast<std::int64_t>(row) * x_stride;
    const BlockOut out = {rows.q + row * k_padded, rows.scales + row * activation_groups,
                          activation_groups, rows.sums + row * groups, groups};
    const bool whole = group % 16 == 0;
    if (block >= 4 && whole && k % ActivationGroup(group) == 0) {
      block == 8 ? QuantizeBlock<8>(in, x_stride, quantization, out)
                 : QuantizeBlock<4>(in, x_stride, quantization, out);
      continue;
    }
    for (std::uint32_t r = 0; r < block; ++r) {
      const auto quantize = whole ? QuantizeOneRow<true> : QuantizeOneRow<false>;
      quantize(in + r * x_stride, quantization, block * 4, out.q + r * 4,
               out.scales + r * activation_groups, out.sums + r * groups);
    }
  }
}

}  // namespace
}  // namespace quire::kernels::internal
