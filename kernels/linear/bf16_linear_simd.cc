// The vector code of products with bf16 activations. It rounds x, dequantizes weights into tiles,
// and multiplies if there is no AMX. Lanes run along N as in linear_simd.cc. The weights of a group
// of panels are dequantized once for all rows, kPartInputs inputs at a time. Stored bf16 panels
// already have the layout of tiles.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/fp8_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/bf16_linear_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

constexpr std::size_t kPanel = PackedLinear::kPanel;
constexpr std::size_t kRowTile = internal::kRowTile;
constexpr std::size_t kBlock = internal::kBlock;
constexpr std::size_t kPairs = kBlock / 2;
static_assert(kPanel == kVirtualLanes);

// Returns the address of a panel.
template <typename T>
const T* PanelOf(const PackedLinear& weight, std::size_t panel) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(weight.data()) +
                                    static_cast<std::int64_t>(panel) * weight.panel_bytes());
}

void RoundRow(const float* HWY_RESTRICT from, std::size_t k, std::uint16_t* HWY_RESTRICT to) {
  const hn::Rebind<std::uint16_t, DF> d16;
  std::size_t i = 0;
  const auto at = [](std::size_t input) {
    return input / kBlock * kBlock * kRowTile + input % kBlock;
  };
  for (; i + kLanes <= k; i += kLanes) {
    const VU rounded = RoundedBF16(hn::LoadU(DF(), from + i));
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(rounded)), d16, to + at(i));
  }
  for (; i < k; ++i) to[at(i)] = BF16::FromFloat(from[i]).bits;
  for (; i % kBlock != 0; ++i) to[at(i)] = 0;
}

void RoundRowOf(const LinearParams& params, std::int64_t m, std::uint16_t* to, float* row) {
  const PackedLinear& weight = *params.weight;
  const std::size_t k = weight.k();
  const float* const x = params.x.f32() + m * params.x_stride;
  if (const std::uint32_t* const order = weight.act_order()) {
    for (std::size_t i = 0; i < k; ++i) row[i] = x[order[i]];
    RoundRow(row, k, to);
  } else if (weight.quantizes_activations()) {
    RoundRowFp8(x, static_cast<std::int64_t>(k), 1, row);
    RoundRow(row, k, to);
  } else {
    RoundRow(x, k, to);
  }
}

// Stores pairs of weights as bf16, [pair][16].
struct StoreBF16 {
  std::uint32_t* to;
  HWY_INLINE void Put(std::size_t pair, std::size_t lane, VU even, VU odd) const {
    const DU du;
    const VU bf16 = hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(du, 0xffff0000u));
    hn::Store(bf16, du, to + pair * kPanel + lane);
  }
  HWY_INLINE void PutUnquantized(std::size_t pair, std::size_t lane, VF even, VF odd) const {
    Put(pair, lane, RoundedBF16(even), RoundedBF16(odd));
  }
  // Rounds ties away from zero, which needs only one instruction.
  HWY_INLINE void PutDequantized(std::size_t pair, std::size_t lane, VF even, VF odd) const {
    const DU du;
    const VU half = hn::Set(du, 0x8000);
    Put(pair, lane, hn::Add(hn::BitCast(du, even), half), hn::Add(hn::BitCast(du, odd), half));
  }
};
// Stores pairs of weights as f32, [input][16].
struct StoreF32 {
  float* to;
  HWY_INLINE void PutDequantized(std::size_t pair, std::size_t lane, VF even, VF odd) const {
    hn::Store(even, DF(), to + 2 * pair * kPanel + lane);
    hn::Store(odd, DF(), to + (2 * pair + 1) * kPanel + lane);
  }
};

// The functions below store the weights of inputs [k0, k1) of a panel, for kLanes features from
// `lane` on. k0 is a multiple of 512. Up to 7 inputs beyond k1 may be stored too.

void WidenF32(const float* panel, std::size_t k0, std::size_t k1, std::size_t lane,
              StoreBF16 store) {
  const DF d;
  for (std::size_t k = k0; k < k1; k += 2) {
    const float* const from = panel + k * kPanel + lane;
    store.PutUnquantized((k - k0) / 2, lane, hn::Load(d, from), hn::Load(d, from + kPanel));
  }
}

void WidenF16(const std::uint32_t* panel, std::size_t k0, std::size_t k1, std::size_t lane,
              StoreBF16 store) {
  for (std::size_t k = k0; k < k1; k += 2) {
    const VU pairs = hn::Load(DU(), panel + k / 2 * kPanel + lane);
    store.PutUnquantized((k - k0) / 2, lane, EvenF16(pairs), OddF16(pairs));
  }
}

// Returns the e4m3 values in the low bytes of `codes`, times 2^-120, by shifting their bits into
// place. REQUIRES: no value is NaN.
HWY_INLINE VF WidenE4M3(VU codes) {
  const DU du;
  const VU magnitude = hn::ShiftLeft<20>(hn::And(codes, hn::Set(du, 0x7f)));
  const VU sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(du, 0x80)));
  return hn::BitCast(DF(), hn::Or(magnitude, sign));
}

void WidenE4M3Panel(const PackedLinear& weight, std::size_t panel, std::size_t k0, std::size_t k1,
                    std::size_t lane, StoreBF16 store) {
  const DF d;
  const DU du;
  const std::size_t group = weight.group();
  const std::size_t groups = (weight.k() + group - 1) / group;
  const std::uint32_t* const codes = PanelOf<std::uint32_t>(weight, panel) + lane;
  const float* const scales =
      static_cast<const float*>(weight.scales()) + panel * groups * kPanel + lane;
  const auto value = [&](std::size_t k, VU code) HWY_ATTR {
    const std::size_t g = std::min(k / group, groups - 1);
    return hn::Mul(hn::Mul(WidenE4M3(code), hn::Set(d, 0x1p120f)),
                   hn::Load(d, scales + g * kPanel));
  };
  for (std::size_t k = k0; k < k1; k += 4) {
    const VU unit = hn::Load(du, codes + k / 4 * kPanel);
    const std::size_t pair = (k - k0) / 2;
    store.PutDequantized(pair, lane, value(k, unit), value(k + 1, hn::ShiftRight<8>(unit)));
    store.PutDequantized(pair + 1, lane, value(k + 2, hn::ShiftRight<16>(unit)),
                         value(k + 3, hn::ShiftRight<24>(unit)));
  }
}

// The ways to convert integers to weights. A stored integer u is first converted to the float
// v = base + u, with base 256 for 8 bits and 16 for 4 bits. The upper bits of the mantissa of v are
// u.
enum class IntScale {
  kF16,         // v * scale + addend; products of f16 scales and small integers are exact
  kMin,         // (v - base) * scale + addend
  kPerFeature,  // (v + addend) * scale
};
struct IntGroup {
  VF scale, addend;
};

// A panel of integer weights.
struct IntPanel {
  const std::uint32_t* codes;  // [units][16]; 32 bits of a feature each
  const void* scales;          // f32 for a scale per feature, else f16
  std::size_t group;
  bool has_min, has_zero_points;
  float base, offset;  // weights without minimums are (u - offset) * scale

  template <IntScale kScale>
  HWY_INLINE IntGroup At(std::size_t g, std::size_t lane) const {
    const DF d;
    if constexpr (kScale == IntScale::kPerFeature) {
      return {hn::Load(d, static_cast<const float*>(scales) + lane), hn::Set(d, -offset - base)};
    }
    const F16* const at = static_cast<const F16*>(scales) + g * (has_min ? 2 : 1) * kPanel + lane;
    const VF scale = LoadWide(at);
    if constexpr (kScale == IntScale::kMin) return {scale, LoadWide(at + kPanel)};
    const VF zero = has_zero_points ? LoadWide(at + kPanel) : hn::Set(d, -offset);
    return {scale, hn::Mul(hn::Sub(zero, hn::Set(d, base)), scale)};
  }
};

// Prefetch distance, 4 KiB. Without prefetches, a core that dequantizes keeps too few loads from
// memory in flight. On Zen 4 a product of one row and int8 weights takes 14 % less time with them.
constexpr std::size_t kPrefetchUnits = 64;

template <int kBit>
using Bit = std::integral_constant<int, kBit>;

template <int kBits, IntScale kScale, class Store>
void DequantizeIntPanel(const IntPanel& panel, std::size_t k0, std::size_t k1, std::size_t lane,
                        Store store) {
  const DF d;
  const DU du;
  constexpr std::size_t kInputs = 32 / kBits;  // inputs of a unit
  constexpr int kLowestBit = 23 - kBits;       // lowest bit of u in the mantissa
  constexpr std::uint32_t kMask = ((1u << kBits) - 1) << kLowestBit;
  const VU base = hn::BitCast(du, hn::Set(d, panel.base));
  for (std::size_t begin = k0, end = k0; begin < k1; begin = end) {
    const std::size_t g = begin / panel.group;
    end = std::min(k1, (g + 1) * panel.group);
    const IntGroup group = panel.template At<kScale>(g, lane);
    // Converts the integer that begins at bit kFrom of `unit` to a weight.
    const auto value = [&](VU unit, auto from) HWY_ATTR __attribute__((always_inline)) {
      constexpr int kFrom = decltype(from)::value;
      VU u = unit;
      if constexpr (kFrom < kLowestBit) u = hn::ShiftLeft<kLowestBit - kFrom>(unit);
      if constexpr (kFrom > kLowestBit) u = hn::ShiftRight<kFrom - kLowestBit>(unit);
      const VF v = hn::BitCast(d, hn::OrAnd(base, u, hn::Set(du, kMask)));
      if constexpr (kScale == IntScale::kF16) return hn::MulAdd(v, group.scale, group.addend);
      if constexpr (kScale == IntScale::kMin) {
        return hn::MulAdd(hn::Sub(v, hn::Set(d, panel.base)), group.scale, group.addend);
      }
      return hn::Mul(hn::Add(v, group.addend), group.scale);
    };
    for (std::size_t k = begin; k < end; k += kInputs) {
      const std::uint32_t* const codes = panel.codes + k / kInputs * kPanel + lane;
      const VU unit = hn::Load(du, codes);
      __builtin_prefetch(codes + kPrefetchUnits * kPanel);
      const std::size_t pair = (k - k0) / 2;
      // Byte i of a unit of 4-bit weights has input i in its low half and input 4 + i in its high
      // half.
      store.PutDequantized(pair, lane, value(unit, Bit<0>()), value(unit, Bit<8>()));
      store.PutDequantized(pair + 1, lane, value(unit, Bit<16>()), value(unit, Bit<24>()));
      if constexpr (kBits == 4) {
        store.PutDequantized(pair + 2, lane, value(unit, Bit<4>()), value(unit, Bit<12>()));
        store.PutDequantized(pair + 3, lane, value(unit, Bit<20>()), value(unit, Bit<28>()));
      }
    }
  }
}

template <class Store>
void DequantizeInts(const PackedLinear& weight, std::size_t panel, std::size_t k0, std::size_t k1,
                    std::size_t lane, Store store) {
  const bool is_int4 = weight.format() == WeightFormat::kInt4;
  const bool has_min = weight.has_min();
  const bool per_feature = weight.dtype() == DType::kF32;
  const std::size_t scales =
      per_feature ? kPanel * sizeof(float)
                  : weight.k() / weight.group() * (has_min ? 2 : 1) * kPanel * sizeof(F16);
  const IntPanel ints = {PanelOf<std::uint32_t>(weight, panel),
                         static_cast<const std::byte*>(weight.scales()) + panel * scales,
                         weight.group(),
                         has_min,
                         weight.has_zero_points(),
                         is_int4 ? 16.0f : 256.0f,
                         is_int4 ? 8.0f : 128.0f};
  const bool adds_min = has_min && !ints.has_zero_points;
  if (is_int4) {
    adds_min ? DequantizeIntPanel<4, IntScale::kMin>(ints, k0, k1, lane, store)
             : DequantizeIntPanel<4, IntScale::kF16>(ints, k0, k1, lane, store);
  } else if (per_feature) {
    DequantizeIntPanel<8, IntScale::kPerFeature>(ints, k0, k1, lane, store);
  } else {
    adds_min ? DequantizeIntPanel<8, IntScale::kMin>(ints, k0, k1, lane, store)
             : DequantizeIntPanel<8, IntScale::kF16>(ints, k0, k1, lane, store);
  }
}

// Copies `size` units of a panel with ordered pairs (packed_linear.h) in the plain order of pairs.
void CopyOrderedPairs(const std::uint32_t* from, std::size_t size, std::uint32_t* to) {
  for (std::size_t i = 0; i < size; i += 2 * kPanel) {
    for (std::size_t r = i; r < i + kPanel; ++r) {
      const std::uint32_t even = from[r], odd = from[kPanel + r];
      to[r] = even >> 16 | (odd & 0xffff0000u);
      to[kPanel + r] = (even & 0xffffu) | odd << 16;
    }
  }
}

// Writes the weights of inputs [k0, k1) of a panel as tiles, [ceil((k1 - k0) / 32)][16][16] pairs.
// Inputs beyond k1 are zeros.
void DequantizePanel(const PackedLinear& weight, std::size_t panel, std::size_t k0, std::size_t k1,
                     std::uint32_t* to) {
  const StoreBF16 store = {to};
  for (std::size_t lane = 0; lane < kPanel; lane += kLanes) {
    if (weight.format() == WeightFormat::kFp8E4M3) {
      WidenE4M3Panel(weight, panel, k0, k1, lane, store);
    } else if (weight.format() != WeightFormat::kPlain) {
      DequantizeInts(weight, panel, k0, k1, lane, store);
    } else if (weight.dtype() == DType::kF32) {
      WidenF32(PanelOf<float>(weight, panel), k0, k1, lane, store);
    } else if (weight.dtype() == DType::kF16) {
      WidenF16(PanelOf<std::uint32_t>(weight, panel), k0, k1, lane, store);
    }
  }
  const std::size_t size = (k1 - k0 + 1) / 2 * kPanel;
  if (weight.format() == WeightFormat::kPlain && weight.dtype() == DType::kBF16) {
    const auto* const from = PanelOf<std::uint32_t>(weight, panel) + k0 / 2 * kPanel;
    weight.has_ordered_pairs() ? CopyOrderedPairs(from, size, to)
                               : void(std::copy_n(from, size, to));
  }
  if ((k1 - k0) % 2 != 0) {
    for (std::size_t i = size - kPanel; i < size; ++i) to[i] &= 0xffffu;
  }
  std::fill(to + size, to + (k1 - k0 + kBlock - 1) / kBlock * kPairs * kPanel, 0u);
}

void DequantizeF32(const PackedLinear& weight, std::int64_t panel, float* to) {
  const std::size_t k = weight.k();
  for (std::size_t lane = 0; lane < kPanel; lane += kLanes) {
    DequantizeInts(weight, static_cast<std::size_t>(panel), 0, k, lane, StoreF32{to});
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define QUIRE_BF16_VECTORS 1

// Computes R rows and P panels. Rows of x are read as pairs of inputs from tiles.
template <std::size_t R, std::size_t P>
HWY_INLINE void MultiplyRows(const internal::Bf16Product& product, std::int64_t panel,
                             std::int64_t row_tile, std::size_t row) {
  constexpr std::size_t kColumns = P * kRegisters;
  const DF d;
  const DU du;
  const std::uint16_t* const x = product.x + row_tile * product.x_stride + row * kBlock;
  const auto* const w =
      reinterpret_cast<const std::uint32_t*>(product.w + panel * product.w_stride);
  const auto w_stride = static_cast<std::size_t>(product.w_stride) / 2;
  const auto total_at = [&](std::size_t r, std::size_t c) {
    return product.totals +
           ((panel + static_cast<std::int64_t>(c / kRegisters)) * product.num_row_tiles +
            row_tile) *
               static_cast<std::int64_t>(kRowTile * kPanel) +
           static_cast<std::int64_t>((row + r) * kPanel + c % kRegisters * kLanes);
  };
  for (std::size_t block = 0; block < static_cast<std::size_t>(product.num_blocks); ++block) {
    VF even[R][kColumns];
    VF odd[R][kColumns];
    for (std::size_t r = 0; r < R; ++r) {
      for (std::size_t c = 0; c < kColumns; ++c) even[r][c] = odd[r][c] = hn::Zero(d);
    }
    for (std::size_t j = 0; j < kPairs; ++j) {
      VU pairs[kColumns];
      for (std::size_t c = 0; c < kColumns; ++c) {
        pairs[c] = hn::Load(du, w + c / kRegisters * w_stride + (block * kPairs + j) * kPanel +
                                    c % kRegisters * kLanes);
      }
      for (std::size_t r = 0; r < R; ++r) {
        std::uint32_t pair;
        std::memcpy(&pair, x + (block * kRowTile + r) * kBlock + 2 * j, sizeof(pair));
        const VU inputs = hn::Set(du, pair);
        for (std::size_t c = 0; c < kColumns; ++c) {
          even[r][c] = hn::MulAdd(EvenBF16(inputs), EvenBF16(pairs[c]), even[r][c]);
          odd[r][c] = hn::MulAdd(OddBF16(inputs), OddBF16(pairs[c]), odd[r][c]);
        }
      }
    }
    for (std::size_t r = 0; r < R; ++r) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        const bool is_first = product.is_first && block == 0;
        const VF total = is_first ? hn::Zero(d) : hn::Load(d, total_at(r, c));
        hn::Store(hn::Add(total, hn::Add(even[r][c], odd[r][c])), d, total_at(r, c));
      }
    }
  }
}

// Numbers of rows and panels of the largest tile, whose sums fit in the registers.
constexpr std::size_t kTileRows = kRegisters == 1 ? 4 : 2;
constexpr std::size_t kTilePanels = kRegisters == 1 ? 2 : 1;

template <std::size_t P>
HWY_INLINE void MultiplyPanels(const internal::Bf16Product& product, std::int64_t panel) {
  for (std::int64_t tile = 0; tile < product.num_row_tiles; ++tile) {
    const std::size_t rows = static_cast<std::size_t>(
        std::min<std::int64_t>(internal::kRowTile, product.num_rows - tile * internal::kRowTile));
    std::size_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) {
      MultiplyRows<kTileRows, P>(product, panel, tile, row);
    }
    for (; row < rows; ++row) MultiplyRows<1, P>(product, panel, tile, row);
  }
}

// Not inlined, so that no arithmetic moves across the changes of MXCSR.
HWY_NOINLINE void MultiplyFlushed(const internal::Bf16Product& product) {
  std::int64_t panel = 0;
  if constexpr (kTilePanels == 2) {
    for (; panel + 2 <= product.num_panels; panel += 2) MultiplyPanels<2>(product, panel);
  }
  for (; panel < product.num_panels; ++panel) MultiplyPanels<1>(product, panel);
}

void Multiply(const internal::Bf16Product& product) {
  constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x40;
  const unsigned mxcsr = _mm_getcsr();
  _mm_setcsr(mxcsr | kFlushResults | kFlushOperands);
  MultiplyFlushed(product);
  _mm_setcsr(mxcsr);
}
#endif

// Writes y = (total + bias) + residual for the features of one panel.
void StorePanel(const LinearParams& params, std::size_t panel, const float* totals,
                std::size_t first_row, std::size_t num_rows) {
  const DF d;
  const std::size_t n = panel * kPanel;
  const std::size_t count = std::min<std::size_t>(kPanel, params.weight->n() - n);
  for (std::size_t r = 0; r < num_rows; ++r) {
    const auto m = static_cast<std::int64_t>(first_row + r);
    const float* const total = totals + r * kPanel;
    float* const y = params.y.f32() + m * params.y_stride + n;
    const float* const bias = params.bias == nullptr ? nullptr : params.bias + n;
    const float* const residual =
        params.residual == nullptr ? nullptr : params.residual + m * params.residual_stride + n;
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      VF v = hn::Load(d, total + i);
      if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + i));
      if (residual != nullptr) v = hn::Add(v, hn::LoadU(d, residual + i));
      hn::StoreU(v, d, y + i);
    }
    for (; i < count; ++i) {
      float v = total[i];
      if (bias != nullptr) v += bias[i];
      if (residual != nullptr) v += residual[i];
      y[i] = v;
    }
  }
}

// Computes panels [begin, end) for rows of the tiles [tile_begin, tile_end).
void ComputeGroup(const internal::Bf16Panels& job, internal::Bf16MultiplyFn multiply,
                  std::size_t begin, std::size_t end, std::size_t tile_begin,
                  std::size_t tile_end) {
  const LinearParams& params = job.params;
  const PackedLinear& weight = *params.weight;
  const std::size_t k = weight.k();
  const std::size_t blocks = (k + kBlock - 1) / kBlock;
  const std::size_t first_row = tile_begin * kRowTile;
  const std::size_t num_rows =
      std::min<std::size_t>(tile_end * kRowTile, params.num_rows) - first_row;
  const bool is_bf16 = weight.format() == WeightFormat::kPlain && weight.dtype() == DType::kBF16;
  auto* const buffer = reinterpret_cast<std::uint32_t*>(job.scratch);
  auto* const totals = reinterpret_cast<float*>(
      job.scratch + internal::WeightScratchBytes(static_cast<std::int64_t>(k)));
  // Only vdpbf16ps multiplies ordered pairs. For other instructions they are copied in plain order.
  const bool is_ordered = weight.has_ordered_pairs() && internal::NeedsOrderedRows(multiply);
  const bool is_sequential = is_ordered && num_rows * k <= internal::kSequentialElements;
  const std::size_t part_inputs = is_sequential ? k
                                  : is_ordered  ? internal::kOrderedPartInputs
                                                : internal::kPartInputs;
  for (std::size_t k0 = 0; k0 < k; k0 += part_inputs) {
    const std::size_t k1 = std::min<std::size_t>(k, k0 + part_inputs);
    const std::size_t part_blocks = (k1 - k0 + kBlock - 1) / kBlock;
    const std::size_t part_size = part_blocks * kPairs * kPanel;
    internal::Bf16Product product = {
        .x = job.x + (tile_begin * blocks + k0 / kBlock) * kRowTile * kBlock,
        .x_stride = static_cast<std::int64_t>(blocks * kRowTile * kBlock),
        .w = reinterpret_cast<const std::uint16_t*>(buffer),
        .w_stride = static_cast<std::int64_t>(part_size * 2),
        .totals = totals,
        .num_row_tiles = static_cast<std::int64_t>(tile_end - tile_begin),
        .num_panels = static_cast<std::int64_t>(end - begin),
        .num_blocks = static_cast<std::int64_t>(part_blocks),
        .num_rows = static_cast<std::int64_t>(num_rows),
        .is_first = k0 == 0,
        .x_is_ordered = internal::NeedsOrderedRows(multiply),
        .w_is_ordered = is_ordered};
    if (is_bf16 && (k1 - k0) % kBlock == 0 && is_ordered == weight.has_ordered_pairs()) {
      product.w = PanelOf<std::uint16_t>(weight, begin) + k0 * kPanel;
      product.w_stride = weight.panel_bytes() / 2;
      // The next panels directly follow in memory.
      product.next_w = k1 < k ? product.w + part_size * 2 : PanelOf<std::uint16_t>(weight, end);
    } else {
      for (std::size_t panel = begin; panel < end; ++panel) {
        DequantizePanel(weight, panel, k0, k1, buffer + (panel - begin) * part_size);
      }
    }
    multiply(product);
  }
  for (std::size_t panel = begin; panel < end; ++panel) {
    StorePanel(params, panel,
               totals + (panel - begin) * (tile_end - tile_begin) * kRowTile * kPanel, first_row,
               num_rows);
  }
}

void ComputePanels(const internal::Bf16Panels& job, std::int64_t panel_begin,
                   std::int64_t panel_end) {
#ifdef QUIRE_BF16_VECTORS
  const internal::Bf16MultiplyFn multiply = job.multiply != nullptr ? job.multiply : Multiply;
  const std::int64_t tiles =
      (std::int64_t{job.params.num_rows} + internal::kRowTile - 1) / internal::kRowTile;
  const std::int64_t group = internal::GroupPanels(job.params.weight->k());
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += group) {
    const std::int64_t end = std::min(panel_end, begin + group);
    for (std::int64_t tile = 0; tile < tiles; tile += internal::kMaxTiles) {
      ComputeGroup(job, multiply, static_cast<std::size_t>(begin), static_cast<std::size_t>(end),
                   static_cast<std::size_t>(tile),
                   static_cast<std::size_t>(std::min(tiles, tile + internal::kMaxTiles)));
    }
  }
#else
  // This instruction set has no fused multiply-add that flushes subnormals.
  internal::LinearBf16Cpu(job.params, panel_begin, panel_end);
#endif
}

internal::Bf16MultiplyFn VectorMultiply() {
#ifdef QUIRE_BF16_VECTORS
  return Multiply;
#else
  return nullptr;
#endif
}
#undef QUIRE_BF16_VECTORS

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(DequantizeF32);
HWY_EXPORT(RoundRowOf);
HWY_EXPORT(ComputePanels);
HWY_EXPORT(VectorMultiply);

namespace internal {

void RoundRowToTile(const LinearParams& params, std::int64_t m, std::uint16_t* to, float* row) {
  HWY_DYNAMIC_DISPATCH(RoundRowOf)(params, m, to, row);
}

void DequantizePanelF32(const PackedLinear& weight, std::int64_t panel, float* to) {
  HWY_DYNAMIC_DISPATCH(DequantizeF32)(weight, panel, to);
}

void LinearBf16Panels(const Bf16Panels& job, std::int64_t panel_begin, std::int64_t panel_end) {
  HWY_DYNAMIC_DISPATCH(ComputePanels)(job, panel_begin, panel_end);
}

Bf16MultiplyFn Bf16MultiplyVectors() {
  return HWY_DYNAMIC_DISPATCH(VectorMultiply)();
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
