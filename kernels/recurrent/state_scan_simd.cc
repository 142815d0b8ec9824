// Columns of a head's state are lanes, so sums over its rows need no reduction across lanes. 64
// columns of a state of 128 rows take 32 KiB, which stay in L1 while the tokens of a row are
// computed. A token reads them once for the prediction (with delta), and once more to update them
// and to compute its result. The decayed state is computed in both passes, which costs less than to
// store it.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/recurrent/state_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent/state_scan_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/recurrent/recurrent_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Registers of columns that are computed at once. Twice as many would not fit AVX2.
inline constexpr std::size_t kColumnRegisters = HWY_MIN(4, internal::kScanColumns / kLanes);
inline constexpr std::size_t kColumns = kColumnRegisters * kLanes;

// The inputs of one token and head.
struct Token {
  const float* q;
  const float* k;
  const float* decay;  // [key_size] if kChannels, else 1
  float rate;
};

// Updates kColumns columns of `state`, whose rows are kScanColumns apart. v and out are padded.
template <bool kDelta, bool kChannels>
HWY_INLINE void Step(const Token& token, std::size_t key_size, float* HWY_RESTRICT state,
                     const float* HWY_RESTRICT v, float* HWY_RESTRICT out) {
  const DF d;
  VF u[kColumnRegisters];
  for (std::size_t c = 0; c < kColumnRegisters; ++c) u[c] = hn::Load(d, v + c * kLanes);
  VF decay = hn::Set(d, token.decay[0]);
  if constexpr (kDelta) {
    VF predicted[kColumnRegisters];
    for (std::size_t c = 0; c < kColumnRegisters; ++c) predicted[c] = hn::Zero(d);
    for (std::size_t i = 0; i < key_size; ++i) {
      if constexpr (kChannels) decay = hn::Set(d, token.decay[i]);
      const VF k = hn::Set(d, token.k[i]);
      const float* const row = state + i * internal::kScanColumns;
      for (std::size_t c = 0; c < kColumnRegisters; ++c) {
        const VF s = hn::Mul(decay, hn::Load(d, row + c * kLanes));
        predicted[c] = hn::MulAdd(s, k, predicted[c]);
      }
    }
    for (std::size_t c = 0; c < kColumnRegisters; ++c) u[c] = hn::Sub(u[c], predicted[c]);
  }
  VF sum[kColumnRegisters];
  for (std::size_t c = 0; c < kColumnRegisters; ++c) {
    u[c] = hn::Mul(hn::Set(d, token.rate), u[c]);
    sum[c] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < key_size; ++i) {
    if constexpr (kChannels) decay = hn::Set(d, token.decay[i]);
    const VF k = hn::Set(d, token.k[i]);
    const VF q = hn::Set(d, token.q[i]);
    float* const row = state + i * internal::kScanColumns;
    for (std::size_t c = 0; c < kColumnRegisters; ++c) {
      const VF s = hn::MulAdd(k, u[c], hn::Mul(decay, hn::Load(d, row + c * kLanes)));
      hn::Store(s, d, row + c * kLanes);
      sum[c] = hn::MulAdd(s, q, sum[c]);
    }
  }
  for (std::size_t c = 0; c < kColumnRegisters; ++c) hn::Store(sum[c], d, out + c * kLanes);
}

template <bool kDelta, bool kChannels>
HWY_NOINLINE void ScanBlock(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                            std::size_t begin, std::size_t columns) {
  constexpr std::size_t kWidth = internal::kScanColumns;
  HWY_ALIGN float state[kMaxStateRows * kWidth];
  HWY_ALIGN float v[kWidth] = {};
  HWY_ALIGN float out[kWidth];
  const DF d;
  const std::size_t dk = params.key_size, dv = params.value_size, heads = params.heads;
  const std::size_t key_head = head / (params.heads / params.key_heads);
  const std::size_t at = head * dk * dv + begin;
  const std::size_t bytes = columns * sizeof(float);
  const float* const before = params.rows.before(row);
  if (before == nullptr || columns < kWidth) std::memset(state, 0, dk * kWidth * sizeof(float));
  for (std::size_t i = 0; before != nullptr && i < dk; ++i) {
    std::memcpy(state + i * kWidth, before + at + i * dv, bytes);
  }
  const auto store = [&](float* to) {
    for (std::size_t i = 0; i < dk; ++i) {
      std::memcpy(to + at + i * dv, state + i * kWidth, bytes);
    }
  };
  const std::uint32_t tokens = params.rows.tokens_of(row);
  const std::uint32_t snapshot = params.rows.snapshot_tokens(row);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const std::size_t token = params.rows.row_offsets[row] + t;
    const std::size_t from = token * static_cast<std::size_t>(params.qkv_stride);
    const std::size_t index = token * heads + head;
    std::memcpy(v, params.v + from + head * dv + begin, bytes);
    const Token inputs{.q = params.q + from + key_head * dk,
                       .k = params.k + from + key_head * dk,
                       .decay = params.decay + index * (kChannels ? dk : 1),
                       .rate = params.rate[index]};
    for (std::size_t c = 0; c < columns; c += kColumns) {
      Step<kDelta, kChannels>(inputs, dk, state + c, v + c, out + c);
    }
    if (params.skip != nullptr) {
      const VF skip = hn::Set(d, params.skip[head]);
      for (std::size_t c = 0; c < columns; c += kLanes) {
        hn::Store(hn::MulAdd(skip, hn::Load(d, v + c), hn::Load(d, out + c)), d, out + c);
      }
    }
    std::memcpy(params.out + index * dv + begin, out, bytes);
    if (t + 1 == snapshot) store(params.rows.snapshot(row));
  }
  store(params.rows.after(row));
}

void ScanHead(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
              std::uint32_t begin, std::uint32_t end) {
  const auto scan =
      params.delta ? (params.decays_channels ? ScanBlock<true, true> : ScanBlock<true, false>)
                   : (params.decays_channels ? ScanBlock<false, true> : ScanBlock<false, false>);
  scan(params, row, head, begin, end - begin);
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(ScanHead);

namespace internal {

void StateScanSimd(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                   std::uint32_t begin, std::uint32_t end) {
  HWY_DYNAMIC_DISPATCH(ScanHead)(params, row, head, begin, end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
