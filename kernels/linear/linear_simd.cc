// The vector code of Linear on the CPU. Each weight is read from memory once for all rows and
// widened in registers. x and y are small in comparison. Lanes run along N, so every output is one
// chain of multiply-adds without a horizontal sum. Tiles are, in rows x panels: AVX-512 8 x 2 (16
// accumulators, 4 weights, 2 broadcasts), AVX2 4 x 1, all others 2 x 1. Tiles of few rows have
// more panels, so that enough chains hide the latency of a multiply-add. A group of panels stays in
// L2 for all row blocks, and the first row block prefetches the next part of K.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

constexpr std::size_t kPanel = PackedLinear::kPanel;
static_assert(kPanel == kVirtualLanes);

// The following structs read weights of different types. Get returns the weights of input kInput of
// a unit, which has kInputs inputs, for the features from `lane` on. A unit of f32 weights is
// [2][16], a unit of 16-bit weights is [16][2].
struct ReadF32 {
  using Unit = float;
  static constexpr bool kScaled = false;
  static constexpr std::size_t kInputs = 2;
  static constexpr std::size_t kUnit = 2 * kPanel;
  template <std::size_t kInput>
  static HWY_INLINE VF Get(const Unit* unit, std::size_t lane) {
    return hn::Load(DF(), unit + kInput * kPanel + lane);
  }
  static HWY_INLINE VF Sort(VF sum) { return sum; }
};
struct ReadBF16 {
  using Unit = std::uint32_t;
  static constexpr bool kScaled = false;
  static constexpr std::size_t kInputs = 2;
  static constexpr std::size_t kUnit = kPanel;
  template <std::size_t kInput>
  static HWY_INLINE VF Get(const Unit* unit, std::size_t lane) {
    const VU pairs = hn::Load(DU(), unit + lane);
    return kInput == 0 ? EvenBF16(pairs) : OddBF16(pairs);
  }
  static HWY_INLINE VF Sort(VF sum) { return sum; }
};
struct ReadF16 {
  using Unit = std::uint32_t;
  static constexpr bool kScaled = false;
  static constexpr std::size_t kInputs = 2;
  static constexpr std::size_t kUnit = kPanel;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // Two conversion instructions serve both even and odd inputs. The shuffle that separates them
  // works within 128 bits and leaves pairs of features out of order, so Sort reorders the sums.
  static HWY_INLINE VF Half(const Unit* unit, std::size_t lane, std::size_t half) {
    const auto* const pairs = reinterpret_cast<const hwy::float16_t*>(unit + lane);
    return hn::PromoteTo(DF(), hn::Load(hn::Rebind<hwy::float16_t, DF>(), pairs + half * kLanes));
  }
  template <std::size_t kInput>
  static HWY_INLINE VF Get(const Unit* unit, std::size_t lane) {
    constexpr int kPattern = kInput == 0 ? 0x88 : 0xdd;
    const VF low = Half(unit, lane, 0);
    const VF high = Half(unit, lane, 1);
#if HWY_TARGET == HWY_AVX2
    return VF{_mm256_shuffle_ps(low.raw, high.raw, kPattern)};
#else
    return VF{_mm512_shuffle_ps(low.raw, high.raw, kPattern)};
#endif
  }
  static HWY_INLINE VF Sort(VF sum) {
#if HWY_TARGET == HWY_AVX2
    return VF{_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(sum.raw), 0xd8))};
#else
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    return VF{_mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(sum.raw)))};
#endif
  }
#else
  template <std::size_t kInput>
  static HWY_INLINE VF Get(const Unit* unit, std::size_t lane) {
    const VU pairs = hn::Load(DU(), unit + lane);
    return kInput == 0 ? EvenF16(pairs) : OddF16(pairs);
  }
  static HWY_INLINE VF Sort(VF sum) {
    return sum;
  }
#endif
};

// Converts e4m3 values to f32 by shifting their bits into place. The result is the value times
// 2^-120, also for subnormals. To compensate, LinearFp8 multiplies x by 2^48, and sums are
// multiplied by 2^72. Sums are therefore subnormal only below 2^-54, in steps of 2^-77, and x must
// be below 2^80. `unit` points to [16][4] bytes.
struct ReadE4M3 {
  using Unit = std::uint8_t;
  static constexpr bool kScaled = true;
  static constexpr std::size_t kInputs = 4;
  static constexpr std::size_t kUnit = kInputs * kPanel;
  static constexpr float kSumFactor = 0x1p120f / internal::kFp8InputScale;
  template <std::size_t kInput>
  static HWY_INLINE VF Get(const Unit* unit, std::size_t lane) {
    const VU codes = hn::Load(DU(), reinterpret_cast<const std::uint32_t*>(unit) + lane);
    // An arithmetic shift to the right keeps the sign.
#if HWY_TARGET == HWY_SCALAR
    const auto top = hn::BitCast(DI(), hn::ShiftLeft<24 - 8 * kInput>(codes));
    const VU at_top = hn::BitCast(DU(), hn::ShiftRight<4>(top));
#else
    // Shifts two values at a time, which are the upper bytes of 16-bit halves.
    const hn::Repartition<std::int16_t, DF> d16;
    const auto halves = hn::BitCast(d16, codes);
    const auto upper = kInput % 2 == 0 ? hn::ShiftLeft<8>(halves) : halves;
    const VU shifted = hn::BitCast(DU(), hn::ShiftRight<4>(upper));
    const VU at_top = kInput < 2 ? hn::ShiftLeft<16>(shifted) : shifted;
#endif
    return hn::BitCast(DF(), hn::And(at_top, hn::Set(DU(), 0x87f00000u)));
  }
  static HWY_INLINE VF Sort(VF sum) {
    return sum;
  }
};

template <class Read>
HWY_INLINE void Fetch(const typename Read::Unit* unit) {
  constexpr std::size_t kLine = 64;
  const auto* const bytes = reinterpret_cast<const char*>(unit);
  for (std::size_t at = 0; at < Read::kUnit * sizeof(*unit); at += kLine) {
    __builtin_prefetch(bytes + at, 0, 2);
  }
}

// Multiplies `count` inputs of R rows of x by P panels, and by `scales` for scaled weights. Writes
// the result to totals[R][P * 16] if `is_first` is true, otherwise adds it. `scales` are [16] per
// panel, scale_stride apart. `next` is the memory to prefetch, which this tile reads next; null:
// none.
template <class Read, std::size_t R, std::size_t P>
HWY_INLINE void AddPart(const float* HWY_RESTRICT x, std::int64_t x_stride,
                        const typename Read::Unit* HWY_RESTRICT w, std::size_t panel_stride,
                        std::size_t count, bool is_first, const typename Read::Unit* next,
                        const float* HWY_RESTRICT scales, std::size_t scale_stride,
                        float* HWY_RESTRICT totals) {
  constexpr std::size_t kColumns = P * kRegisters;
  const DF d;
  VF acc[R][kColumns];
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) acc[r][c] = hn::Zero(d);
  }
  // These lambdas must be inlined, because calls would keep the sums in memory.
  const auto add = [&](auto input, const typename Read::Unit* unit, std::size_t at) HWY_ATTR
      __attribute__((always_inline)) {
    VF weight[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) {
      weight[c] = Read::template Get<decltype(input)::value>(unit + c / kRegisters * panel_stride,
                                                             c % kRegisters * kLanes);
    }
    for (std::size_t r = 0; r < R; ++r) {
      const VF a = hn::Set(d, x[static_cast<std::int64_t>(r) * x_stride +
                                static_cast<std::int64_t>(at + decltype(input)::value)]);
      for (std::size_t c = 0; c < kColumns; ++c) acc[r][c] = hn::MulAdd(a, weight[c], acc[r][c]);
    }
  };
  const auto add_unit = [&](std::size_t j, std::size_t inputs) HWY_ATTR
      __attribute__((always_inline)) {
    const typename Read::Unit* const unit = w + j * Read::kUnit;
    const std::size_t at = j * Read::kInputs;
    add(std::integral_constant<std::size_t, 0>(), unit, at);
    if (inputs > 1) add(std::integral_constant<std::size_t, 1>(), unit, at);
    if constexpr (Read::kInputs == 4) {
      if (inputs > 2) add(std::integral_constant<std::size_t, 2>(), unit, at);
      if (inputs > 3) add(std::integral_constant<std::size_t, 3>(), unit, at);
    }
  };
  for (std::size_t j = 0; j < count / Read::kInputs; ++j) {
    if (next != nullptr) {
      for (std::size_t p = 0; p < P; ++p) Fetch<Read>(next + p * panel_stride + j * Read::kUnit);
    }
    add_unit(j, Read::kInputs);
  }
  if (count % Read::kInputs != 0) add_unit(count / Read::kInputs, count % Read::kInputs);
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) {
      float* const total = totals + (r * kColumns + c) * kLanes;
      const VF sum = Read::Sort(acc[r][c]);
      if constexpr (Read::kScaled) {
        const VF whole = hn::Mul(sum, hn::Set(d, Read::kSumFactor));
        const VF scale =
            hn::Load(d, scales + c / kRegisters * scale_stride + c % kRegisters * kLanes);
        hn::Store(is_first ? hn::Mul(whole, scale) : hn::MulAdd(whole, scale, hn::Load(d, total)),
                  d, total);
      } else {
        hn::Store(is_first ? sum : hn::Add(hn::Load(d, total), sum), d, total);
      }
    }
  }
}

// Writes y = total + bias + residual for the `count` features of one panel, without padding.
HWY_INLINE void StorePanel(const float* HWY_RESTRICT total, const float* bias,
                           const float* residual, float* y, std::size_t count) {
  const DF d;
  if (count == kPanel) {
    for (std::size_t lane = 0; lane < kPanel; lane += kLanes) {
      VF v = hn::Load(d, total + lane);
      if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + lane));
      if (residual != nullptr) v = hn::Add(v, hn::LoadU(d, residual + lane));
      hn::StoreU(v, d, y + lane);
    }
    return;
  }
  for (std::size_t lane = 0; lane < count; ++lane) {
    float v = total[lane];
    if (bias != nullptr) v += bias[lane];
    if (residual != nullptr) v += residual[lane];
    y[lane] = v;
  }
}

// Returns the end of the part of K that begins at k0. Parts of scaled weights end where groups end.
template <class Read>
HWY_INLINE std::size_t PartEnd(std::size_t k, std::size_t group, std::size_t k0) {
  const std::size_t end = std::min<std::size_t>(k, k0 + internal::kLinearPart);
  if constexpr (!Read::kScaled) return end;
  return std::min(end, (k0 / group + 1) * group);
}

// Panels of weights. `panels` points to the panel with the index `first`.
struct Weights {
  const void* panels;
  std::int64_t first;
};

// Computes R rows and P panels over all of K, starting with row `row` and panel `panel`.
template <class Read, std::size_t R, std::size_t P>
HWY_INLINE void ComputeTile(const LinearParams& params, const Weights& weights, std::int64_t row,
                            std::int64_t panel) {
  const PackedLinear& weight = *params.weight;
  const std::size_t k = weight.k();
  const std::size_t panel_stride = (k + Read::kInputs - 1) / Read::kInputs * Read::kUnit;
  const auto* const w = static_cast<const typename Read::Unit*>(weights.panels) +
                        static_cast<std::size_t>(panel - weights.first) * panel_stride;
  const float* const x = params.x.f32() + row * params.x_stride;
  const float* scales = nullptr;
  std::size_t group = 0;
  std::size_t scale_stride = 0;
  if constexpr (Read::kScaled) {
    group = weight.group();
    scale_stride = (k + group - 1) / group * kPanel;
    scales =
        static_cast<const float*>(weight.scales()) + static_cast<std::size_t>(panel) * scale_stride;
  }
  HWY_ALIGN float totals[R * P * kPanel];
  for (std::size_t k0 = 0, k1 = 0; k0 < k; k0 = k1) {
    k1 = PartEnd<Read>(k, group, k0);
    // Prefetches only for the first block of rows, because the panels are in L2 afterwards. With
    // few rows the hardware prefetcher suffices.
    const typename Read::Unit* next = nullptr;
    if (R >= 4 && row == 0) {
      next = k1 < k ? w + k1 / Read::kInputs * Read::kUnit : w + P * panel_stride;
    }
    const float* scale = nullptr;
    if constexpr (Read::kScaled) scale = scales + k0 / group * kPanel;
    AddPart<Read, R, P>(x + k0, params.x_stride, w + k0 / Read::kInputs * Read::kUnit, panel_stride,
                        k1 - k0, k0 == 0, next, scale, scale_stride, totals);
  }
  for (std::size_t r = 0; r < R; ++r) {
    const std::int64_t m = row + static_cast<std::int64_t>(r);
    for (std::size_t p = 0; p < P; ++p) {
      const std::int64_t n =
          (panel + static_cast<std::int64_t>(p)) * static_cast<std::int64_t>(kPanel);
      StorePanel(
          totals + (r * P + p) * kPanel, params.bias == nullptr ? nullptr : params.bias + n,
          params.residual == nullptr ? nullptr : params.residual + m * params.residual_stride + n,
          params.y.f32() + m * params.y_stride + n,
          std::min<std::size_t>(kPanel, weight.n() - static_cast<std::size_t>(n)));
    }
  }
}

template <class Read, std::size_t R, std::size_t P>
HWY_INLINE void ComputeRowBlock(const LinearParams& params, const Weights& weights,
                                std::int64_t row, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kStep = P;
  std::int64_t panel = begin;
  for (; panel + kStep <= end; panel += kStep) ComputeTile<Read, R, P>(params, weights, row, panel);
  for (; panel < end; ++panel) ComputeTile<Read, R, 1>(params, weights, row, panel);
}

// Number of rows of the largest tile, and numbers of panels of tiles with 8, 4, 2 and 1 rows.
constexpr std::int64_t kTileRows = kRegisters == 1 ? 8 : kRegisters == 2 ? 4 : 2;
constexpr std::size_t kPanels8 = 2;
constexpr std::size_t kPanels4 = kRegisters == 1 ? 4 : 1;
constexpr std::size_t kPanels2 = kRegisters == 1 ? 4 : kRegisters == 2 ? 2 : 1;
constexpr std::size_t kPanels1 = kRegisters == 4 ? 2 : kRegisters > 4 ? 1 : 4;

template <class Read>
void ComputePanels(const LinearParams& params, const Weights& weights, std::int64_t panel_begin,
                   std::int64_t panel_end) {
  const std::int64_t rows = params.num_rows;
  const std::int64_t group =
      static_cast<std::int64_t>(rows >= 8 ? std::max(kPanels8, kPanels4) : kPanels1);
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += group) {
    const std::int64_t end = std::min(panel_end, begin + group);
    std::int64_t row = 0;
    if constexpr (kTileRows >= 8) {
      for (; row + 8 <= rows; row += 8)
        ComputeRowBlock<Read, 8, kPanels8>(params, weights, row, begin, end);
    }
    if constexpr (kTileRows >= 4) {
      for (; row + 4 <= rows; row += 4)
        ComputeRowBlock<Read, 4, kPanels4>(params, weights, row, begin, end);
    }
    for (; row + 2 <= rows; row += 2)
      ComputeRowBlock<Read, 2, kPanels2>(params, weights, row, begin, end);
    for (; row < rows; ++row) ComputeRowBlock<Read, 1, kPanels1>(params, weights, row, begin, end);
  }
}

void LinearPanels(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end,
                  const float* panels) {
  const PackedLinear& weight = *params.weight;
  const Weights weights = {weight.data(), 0};
  if (panels != nullptr) {
    ComputePanels<ReadF32>(params, {panels, panel_begin}, panel_begin, panel_end);
  } else if (weight.format() == WeightFormat::kFp8E4M3) {
    ComputePanels<ReadE4M3>(params, weights, panel_begin, panel_end);
  } else if (weight.dtype() == DType::kF32) {
    ComputePanels<ReadF32>(params, weights, panel_begin, panel_end);
  } else if (weight.dtype() == DType::kBF16) {
    ComputePanels<ReadBF16>(params, weights, panel_begin, panel_end);
  } else {
    ComputePanels<ReadF16>(params, weights, panel_begin, panel_end);
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(LinearPanels);

namespace internal {

void LinearSimd(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end,
                const float* panels) {
  HWY_DYNAMIC_DISPATCH(LinearPanels)(params, panel_begin, panel_end, panels);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
