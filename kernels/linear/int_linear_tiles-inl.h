// The integer linear of the instruction sets with 128-bit or 256-bit registers. The source file of
// each instruction set includes this file. It must first define kLanes, I, F and operations on
// them, kColumns, kCentredBytes, Inputs, Prepare, Dot8 and Dot4.
//
// Every weight is read from memory once for all rows of the call. A group of panels stays in L2
// while all rows are multiplied by it. A chunk of 256 inputs of a panel stays in L1 for a block of
// 8 rows. Lanes are consecutive features. A tile of up to 4 rows keeps the integer sums of a group
// in registers, and the totals over all groups in L1.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {
namespace {

constexpr std::size_t kPanel = 16;
constexpr std::size_t kChunk = 256;         // inputs
constexpr std::size_t kQuads = kChunk / 4;  // quads of a chunk; a quad is 4 inputs of 8 bits
constexpr std::int64_t kBlockPanels = 4;
// Number of features per tile.
constexpr std::size_t kPieceLanes = kColumns * kLanes;

// The width of weights, and whether they have one scale per feature or per group. kGroups4x32 has
// groups of 32 inputs.
enum class Kind { kFeature8, kGroups8, kGroups4, kGroups4x32 };
constexpr bool Is4(Kind kind) {
  return kind == Kind::kGroups4 || kind == Kind::kGroups4x32;
}

constexpr std::size_t Least(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}

// Returns the initial value of a sum. Adding the products with Dot8 or Dot4 gives I - O * sum
// (int_linear.h).
template <Kind K>
QUIRE_OP I Start(bool has_min, const std::int32_t* sum) {
  const bool centred = !Is4(K) && kCentredBytes;
  if (has_min == !centred) return Zero();
  const I correction = ShiftLeft32 < Is4(K) ? 3 : 7 > (Broadcast(sum));  // 8 or 128 times the sum
  return centred ? correction : Subtract32(Zero(), correction);
}

// Values that are equal for all tiles of a block of B rows and a chunk.
template <std::size_t B>
struct Chunk {
  const IntLinearArgs* args;
  std::size_t row;           // first row of the block
  std::size_t k0;            // first input
  std::size_t count;         // number of inputs, including the padding of the last chunk
  const std::int8_t* q;      // [count / 4][B][4]
  Inputs<B, kQuads> inputs;  // for 8-bit weights
  // Unused with one scale per feature. `groups` and `wide_groups` are the numbers of groups of
  // weights and of activations in a row. first_group is the group of weights that starts at k0.
  // Group g of weights belongs to group g >> wide_shift of activations.
  std::size_t groups, wide_groups, first_group, wide_shift;
};

// For one scale per feature: adds the products of the chunk to the integers totals[R][16].
template <std::size_t B, std::size_t R>
QUIRE_OP void FeatureTile(const Chunk<B>& chunk, const std::uint8_t* w, const std::uint8_t* next,
                          std::size_t lane, std::size_t first, std::int32_t* totals) {
  I acc[R][kColumns];
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) acc[r][c] = Load(totals + r * kPanel + c * kLanes);
  }
  Dot8<R>(w + lane * 4, chunk.inputs, first, 0, chunk.count / 4, next, acc);
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) Store(acc[r][c], totals + r * kPanel + c * kLanes);
  }
}

// Adds the products of the chunk's groups to the floats totals[R][16], for rows [first, first + R)
// of the block. `scales` points to the panel's first group at feature `lane`.
template <Kind K, std::size_t B, std::size_t R>
QUIRE_OP void GroupTile(const Chunk<B>& chunk, const std::uint8_t* w, const std::uint8_t* next,
                        const std::uint16_t* scales, std::size_t lane, std::size_t first,
                        float* totals) {
  const IntLinearArgs& args = *chunk.args;
  const std::size_t group = K == Kind::kGroups4x32 ? 32 : args.group;
  const std::size_t groups = chunk.groups;
  const std::size_t wide_groups = chunk.wide_groups;
  const std::size_t scale_step = args.has_min ? 2 * kPanel : kPanel;
  const std::int32_t* const sums = args.x.sums + (chunk.row + first) * groups;
  const float* const factors = args.x.scales + (chunk.row + first) * wide_groups;
  std::size_t g = chunk.first_group;
  for (std::size_t at = 0; at < chunk.count; at += group, ++g) {
    I acc[R][kColumns];
    for (std::size_t r = 0; r < R; ++r) {
      const I start = Start<K>(args.has_min, sums + r * groups + g);
      for (std::size_t c = 0; c < kColumns; ++c) acc[r][c] = start;
    }
    if constexpr (K == Kind::kGroups8) {
      const std::size_t j = at / 4;
      Dot8<R>(w + j * 64 + lane * 4, chunk.inputs, first, j, group / 4, next + j * 64, acc);
    } else {
      std::size_t i = at;
      do {
        Dot4<R, B>(w + i * 8 + lane * 4, chunk.q + (i / 4 * B + first) * 4, next + i * 8, acc);
        i += 32;
      } while (K == Kind::kGroups4 && i < at + group);
    }
    const std::uint16_t* const scale = scales + g * scale_step;
    Prefetch(scale + kChunk / 32 * scale_step);
    F s[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) s[c] = LoadF16(scale + c * kLanes);
    for (std::size_t r = 0; r < R; ++r) {
      const F a = BroadcastF(factors + r * wide_groups + (g >> chunk.wide_shift));
      for (std::size_t c = 0; c < kColumns; ++c) {
        float* const total = totals + r * kPanel + c * kLanes;
        StoreF(MultiplyAdd(ToFloat(acc[r][c]), Multiply(a, s[c]), LoadF(total)), total);
      }
    }
    if (!args.has_min) continue;
    for (std::size_t c = 0; c < kColumns; ++c) {
      const F min = LoadF16(scale + kPanel + c * kLanes);
      s[c] = args.has_zero_points ? Multiply(min, s[c]) : min;
    }
    for (std::size_t r = 0; r < R; ++r) {
      const F a = BroadcastF(factors + r * wide_groups + (g >> chunk.wide_shift));
      const F sum = ToFloat(Set32(sums[r * groups + g]));
      for (std::size_t c = 0; c < kColumns; ++c) {
        float* const total = totals + r * kPanel + c * kLanes;
        StoreF(MultiplyAdd(sum, Multiply(a, s[c]), LoadF(total)), total);
      }
    }
  }
}

// Writes y = total + bias + residual for the features of one panel, without padding.
QUIRE_OP void StorePanel(const IntLinearArgs& args, std::size_t row, std::size_t panel,
                         const float* total) {
  const std::size_t n = panel * kPanel;
  const float* const bias = args.bias == nullptr ? nullptr : args.bias + n;
  const auto m = static_cast<std::int64_t>(row);
  const float* const residual =
      args.residual == nullptr ? nullptr : args.residual + m * args.residual_stride + n;
  float* const y = args.y + m * args.y_stride + n;
  const std::size_t count = Least(kPanel, args.n - n);
  for (std::size_t i = 0; i < count; ++i) {
    float v = total[i];
    if (bias != nullptr) v += bias[i];
    if (residual != nullptr) v += residual[i];
    y[i] = v;
  }
}

// Converts integer sums to values, with one scale per feature.
QUIRE_OP void ScaleFeatures(const IntLinearArgs& args, std::size_t row, std::size_t panel,
                            const std::int32_t* sums, float* totals) {
  const F a = BroadcastF(args.x.scales + row);
  const float* const scales = static_cast<const float*>(args.scales) + panel * kPanel;
  for (std::size_t i = 0; i < kPanel; i += kLanes) {
    StoreF(Multiply(ToFloat(Load(sums + i)), Multiply(a, LoadF(scales + i))), totals + i);
  }
}

// Computes rows [row, row + B) for panels [begin, end), at most kBlockPanels.
template <Kind K, std::size_t B>
void ComputeBlock(const IntLinearArgs& args, std::size_t row, std::size_t begin, std::size_t end) {
  constexpr std::size_t kRows = Least(B, 4);
  const std::size_t k_padded = (args.k + 3) / 4 * 4;
  const std::size_t panel_bytes = static_cast<std::size_t>(args.panel_bytes);
  const std::size_t chunk_bytes = kChunk * (Is4(K) ? 8 : 16);
  const std::size_t scale_bytes = args.k / args.group * kPanel * (args.has_min ? 4 : 2);
  alignas(64) float totals[kBlockPanels][B][kPanel] = {};
  alignas(64) std::int32_t sums[K == Kind::kFeature8 ? kBlockPanels : 1][B][kPanel];
  if constexpr (K == Kind::kFeature8) {
    for (std::size_t i = 0; i < kBlockPanels * B * kPanel; ++i) {
      sums[i / (B * kPanel)][i / kPanel % B][i % kPanel] =
          kCentredBytes ? 0 : -128 * args.x.sums[row + i / kPanel % B];
    }
  }
  Chunk<B> chunk;
  chunk.args = &args;
  chunk.row = row;
  chunk.wide_shift = args.group < 32 ? 1 : 0;
  chunk.groups = args.k / args.group;
  chunk.wide_groups = (chunk.groups + chunk.wide_shift) >> chunk.wide_shift;
  for (chunk.k0 = 0; chunk.k0 < k_padded; chunk.k0 += kChunk) {
    chunk.count = Least(kChunk, k_padded - chunk.k0);
    chunk.q = args.x.q + row * k_padded + chunk.k0 * B;
    chunk.first_group = chunk.k0 / args.group;
    if constexpr (!Is4(K)) Prepare(chunk.q, chunk.count / 4, chunk.inputs);
    for (std::size_t panel = begin; panel < end; ++panel) {
      const std::uint8_t* const w =
          args.panels + panel * panel_bytes + chunk.k0 / kChunk * chunk_bytes;
      // Prefetches the memory that is read next: this chunk of the next panel, the next chunk of
      // the first panel, or the next group of panels.
      const std::uint8_t* next = w + panel_bytes;
      if (panel + 1 == end && chunk.k0 + kChunk < k_padded) {
        next = w - (end - begin - 1) * panel_bytes + chunk_bytes;
      } else if (panel + 1 == end) {
        next = args.panels + end * panel_bytes;
      }
      for (std::size_t first = 0; first < B; first += kRows) {
        for (std::size_t lane = 0; lane < kPanel; lane += kPieceLanes) {
          if constexpr (K == Kind::kFeature8) {
            FeatureTile<B, kRows>(chunk, w, next, lane, first, sums[panel - begin][first] + lane);
          } else {
            const auto* const scales = reinterpret_cast<const std::uint16_t*>(
                static_cast<const char*>(args.scales) + panel * scale_bytes);
            GroupTile<K, B, kRows>(chunk, w, next, scales + lane, lane, first,
                                   totals[panel - begin][first] + lane);
          }
        }
      }
    }
  }
  for (std::size_t panel = begin; panel < end; ++panel) {
    for (std::size_t r = 0; r < B; ++r) {
      float* const total = totals[panel - begin][r];
      if constexpr (K == Kind::kFeature8) {
        ScaleFeatures(args, row + r, panel, sums[panel - begin][r], total);
      }
      StorePanel(args, row + r, panel, total);
    }
  }
}

template <Kind K>
void ComputePanels(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  const std::size_t rows = args.num_rows;
  // With one or two rows, weights are read as a single stream, one panel at a time.
  const std::int64_t step = rows > 2 ? kBlockPanels : 1;
  for (std::int64_t from = panel_begin; from < panel_end; from += step) {
    const auto begin = static_cast<std::size_t>(from);
    const auto end = static_cast<std::size_t>(from + step < panel_end ? from + step : panel_end);
    std::size_t row = 0;
    for (; row + 8 <= rows; row += 8) ComputeBlock<K, 8>(args, row, begin, end);
    if (row + 4 <= rows) {
      ComputeBlock<K, 4>(args, row, begin, end);
      row += 4;
    }
    if (row + 2 <= rows) {
      ComputeBlock<K, 2>(args, row, begin, end);
      row += 2;
    }
    if (row < rows) ComputeBlock<K, 1>(args, row, begin, end);
  }
}

void Linear(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  if (args.is_int4 && args.group == 32) {
    ComputePanels<Kind::kGroups4x32>(args, panel_begin, panel_end);
  } else if (args.is_int4) {
    ComputePanels<Kind::kGroups4>(args, panel_begin, panel_end);
  } else if (args.scale_per_feature) {
    ComputePanels<Kind::kFeature8>(args, panel_begin, panel_end);
  } else {
    ComputePanels<Kind::kGroups8>(args, panel_begin, panel_end);
  }
}

// Returns the bits of the largest magnitude. As integers, the bits of infinities and NaNs are
// larger than those of all numbers.
QUIRE_OP std::uint32_t LargestBits(const float* x, std::size_t count) {
  const I magnitude = Set32(0x7fffffff);
  I largest = Zero();
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    largest = Max32(largest, And(Load(x + i), magnitude));
  }
  alignas(64) std::int32_t lanes[kLanes];
  Store(largest, lanes);
  std::int32_t result = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result = lanes[lane] > result ? lanes[lane] : result;
  }
  for (; i < count; ++i) {
    std::int32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    result = bits > result ? bits : result;
  }
  return static_cast<std::uint32_t>(result);
}

// Quantizes at most 32 values and writes them as whole quads. Returns their sum.
QUIRE_OP std::int32_t RoundQuads(const float* x, std::size_t count, float inverse,
                                 std::size_t quad_step, std::int8_t* q) {
  alignas(64) float padded[32] = {};
  if (count % kLanes != 0) {
    __builtin_memcpy(padded, x, count * sizeof(float));
    x = padded;
  }
  I sum = Zero();
  alignas(64) std::int32_t values[32];
  for (std::size_t i = 0; i < count; i += kLanes) {
    const I v = Round(Multiply(LoadF(x + i), SetF(inverse)));
    sum = Add32(sum, v);
    Store(v, values + i);
  }
  for (std::size_t i = 0; i < count; i += 4) {
    const std::uint32_t quad = NarrowQuad(values + i);
    __builtin_memcpy(q + i / 4 * quad_step, &quad, 4);
  }
  alignas(64) std::int32_t lanes[kLanes];
  Store(sum, lanes);
  std::int32_t total = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

// Returns the least power of two >= x. REQUIRES: x is a normal number.
QUIRE_OP float PowerOfTwoFrom(float x) {
  const auto bits = (__builtin_bit_cast(std::uint32_t, x) + 0x7fffff) & 0x7f800000;
  return __builtin_bit_cast(float, bits);
}

// Quantizes a row. `q` points to the row's first quad. Consecutive quads are quad_step bytes apart.
void QuantizeOne(const float* x, const RowQuantization& quantization, std::size_t quad_step,
                 std::int8_t* q, float* scales, std::int32_t* sums) {
  const std::size_t k = quantization.k;
  const std::size_t group = quantization.group;
  const std::size_t activation_group = group < 32 ? 32 : group;
  for (std::size_t g = 0; g < k / group; ++g) sums[g] = 0;
  for (std::size_t k0 = 0; k0 < k; k0 += activation_group) {
    const std::size_t count = Least(activation_group, k - k0);
    const std::uint32_t bits = LargestBits(x + k0, count);
    float largest;
    __builtin_memcpy(&largest, &bits, 4);
    // Compares bits, because the bits of NaN are larger than those of all other values.
    constexpr std::uint32_t kLimitBits = __builtin_bit_cast(std::uint32_t, kActivationLimit);
    const bool is_too_large = bits >= kLimitBits;
    if (is_too_large || largest < kMinActivation) {
      scales[k0 / activation_group] = is_too_large ? __builtin_nanf("") : 1.0f;
      for (std::size_t i = k0; i < k0 + count; i += 4)
        __builtin_memset(q + i / 4 * quad_step, 0, 4);
      continue;
    }
    float scale = largest / 127.0f;
    float inverse = 127.0f / largest;
    if (quantization.is_int4) {
      scale = PowerOfTwoFrom(scale);
      inverse = 1.0f / scale;
    }
    scales[k0 / activation_group] = scale;
    const std::size_t step = group < 32 ? group : 32;
    for (std::size_t i = k0; i < k0 + count; i += step) {
      sums[i / group] +=
          RoundQuads(x + i, Least(step, k0 + count - i), inverse, quad_step, q + i / 4 * quad_step);
    }
  }
}

void Quantize(const float* x, std::int64_t x_stride, const RowQuantization& quantization,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  const std::size_t k = quantization.k;
  const std::size_t k_padded = (k + 3) / 4 * 4;
  const std::size_t activation_group = quantization.group < 32 ? 32 : quantization.group;
  for (std::size_t row = row_begin; row < row_end;) {
    const std::size_t left = num_rows - row;
    const std::size_t block = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (std::size_t lane = 0; lane < block; ++lane) {
      const std::size_t m = row + lane;
      QuantizeOne(x + static_cast<std::int64_t>(m) * x_stride, quantization, block * 4,
                  rows.q + row * k_padded + lane * 4,
                  rows.scales + m * ((k + activation_group - 1) / activation_group),
                  rows.sums + m * (k / quantization.group));
    }
    row += block;
  }
}

#undef QUIRE_OP

}  // namespace
}  // namespace quire::kernels::internal
