// Each lane computes one column of a head's state, so sums over its rows need no reduction across
// lanes. For each token the state is read once for the prediction (with delta), and once more to
// update it and to compute the result. Both passes compute the decayed state, because that costs
// less than storing it.
//
// For a row of several tokens, 64 columns at a time are copied to the stack. 64 columns of a state
// of 128 rows occupy 32 KiB, which stay in L1 for all tokens of the row. For a row of one token the
// state is updated in place, all columns of a head at a time, because reading and writing memory
// takes most of the time.

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

// Number of vector registers of columns that are computed at once. AVX2 has too few registers for
// more. On AVX-512, ScanToken uses kWideRegisters to hide the latency of multiply-adds.
inline constexpr std::size_t kColumnRegisters = HWY_MIN(4, internal::kScanColumns / kLanes);
inline constexpr std::size_t kColumns = kColumnRegisters * kLanes;
inline constexpr std::size_t kWideRegisters = kColumnRegisters * (kLanes == 16 ? 2 : 1);
inline constexpr std::size_t kWideColumns = kWideRegisters * kLanes;

// Some columns of a state: the address to read them from and the address to write them to. Rows are
// `stride` floats apart.
struct Place {
  const float* from;
  float* to;
  std::size_t stride;
};

// The inputs of one token and head.
struct Token {
  const float* q;
  const float* k;
  const float* decay;  // [key_size] if kChannels, else 1
  float rate;
};

// Updates kCount registers of columns of a state, and writes the results of these columns.
template <bool kDelta, bool kChannels, std::size_t kCount>
HWY_INLINE void Step(const Token& token, std::size_t key_size, const Place& state,
                     const float* HWY_RESTRICT v, float* HWY_RESTRICT out) {
  const DF d;
  VF u[kCount];
  for (std::size_t c = 0; c < kCount; ++c) u[c] = hn::LoadU(d, v + c * kLanes);
  VF decay = hn::Set(d, token.decay[0]);
  if constexpr (kDelta) {
    VF predicted[kCount];
    for (std::size_t c = 0; c < kCount; ++c) predicted[c] = hn::Zero(d);
    for (std::size_t i = 0; i < key_size; ++i) {
      if constexpr (kChannels) decay = hn::Set(d, token.decay[i]);
      const VF k = hn::Set(d, token.k[i]);
      const float* const row = state.from + i * state.stride;
      for (std::size_t c = 0; c < kCount; ++c) {
        const VF s = hn::Mul(decay, hn::LoadU(d, row + c * kLanes));
        predicted[c] = hn::MulAdd(s, k, predicted[c]);
      }
    }
    for (std::size_t c = 0; c < kCount; ++c) u[c] = hn::Sub(u[c], predicted[c]);
  }
  VF sum[kCount];
  for (std::size_t c = 0; c < kCount; ++c) {
    u[c] = hn::Mul(hn::Set(d, token.rate), u[c]);
    sum[c] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < key_size; ++i) {
    if constexpr (kChannels) decay = hn::Set(d, token.decay[i]);
    const VF k = hn::Set(d, token.k[i]);
    const VF q = hn::Set(d, token.q[i]);
    const float* const from = state.from + i * state.stride;
    float* const to = state.to + i * state.stride;
    for (std::size_t c = 0; c < kCount; ++c) {
      const VF s = hn::MulAdd(k, u[c], hn::Mul(decay, hn::LoadU(d, from + c * kLanes)));
      hn::StoreU(s, d, to + c * kLanes);
      sum[c] = hn::MulAdd(s, q, sum[c]);
    }
  }
  for (std::size_t c = 0; c < kCount; ++c) hn::StoreU(sum[c], d, out + c * kLanes);
}

template <bool kChannels>
HWY_INLINE Token TokenInputs(const StateScanParams& params, std::size_t token, std::size_t head) {
  const std::size_t dk = params.key_size,
                    key_head = params.key_head(static_cast<std::uint32_t>(head));
  const std::size_t from = token * static_cast<std::size_t>(params.qkv_stride) + key_head * dk;
  const std::size_t index = token * params.heads + head;
  return {.q = params.q + from,
          .k = params.k + from,
          .decay = params.decay + index * (kChannels ? dk : 1),
          .rate = params.rate[index]};
}

// Adds skip * v to `columns` results of a head. Does nothing if there is no skip.
HWY_INLINE void AddSkip(const StateScanParams& params, std::size_t head, std::size_t columns,
                        const float* HWY_RESTRICT v, float* HWY_RESTRICT out) {
  if (params.skip == nullptr) return;
  const DF d;
  const VF skip = hn::Set(d, params.skip[head]);
  for (std::size_t c = 0; c < columns; c += kLanes) {
    hn::StoreU(hn::MulAdd(skip, hn::LoadU(d, v + c), hn::LoadU(d, out + c)), d, out + c);
  }
}

// Computes the only token of a row whose state is not zero. Updates the state without a copy of it.
template <bool kDelta, bool kChannels>
HWY_NOINLINE void ScanToken(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                            std::size_t begin, std::size_t columns) {
  const std::size_t dk = params.key_size, dv = params.value_size;
  const std::size_t token = params.rows.row_offsets[row];
  const Token inputs = TokenInputs<kChannels>(params, token, head);
  const std::size_t at = head * dk * dv + begin, column = head * dv + begin;
  const float* const v = params.v + token * static_cast<std::size_t>(params.qkv_stride) + column;
  float* const out = params.out + token * params.heads * dv + column;
  const float* const before = params.rows.before(row) + at;
  float* const after = params.rows.after(row) + at;
  std::size_t c = 0;
  for (; c + kWideColumns <= columns; c += kWideColumns) {
    Step<kDelta, kChannels, kWideRegisters>(inputs, dk, {before + c, after + c, dv}, v + c,
                                            out + c);
  }
  for (; c < columns; c += kColumns) {
    Step<kDelta, kChannels, kColumnRegisters>(inputs, dk, {before + c, after + c, dv}, v + c,
                                              out + c);
  }
  AddSkip(params, head, columns, v, out);
}

template <bool kDelta, bool kChannels>
HWY_NOINLINE void ScanBlock(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                            std::size_t begin, std::size_t columns) {
  constexpr std::size_t kWidth = internal::kScanColumns;
  HWY_ALIGN float state[kMaxStateRows * kWidth];
  HWY_ALIGN float v[kWidth] = {};
  HWY_ALIGN float out[kWidth];
  const std::size_t dk = params.key_size, dv = params.value_size, heads = params.heads;
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
    const Token inputs = TokenInputs<kChannels>(params, token, head);
    std::memcpy(v,
                params.v + token * static_cast<std::size_t>(params.qkv_stride) + head * dv + begin,
                bytes);
    for (std::size_t c = 0; c < columns; c += kColumns) {
      Step<kDelta, kChannels, kColumnRegisters>(inputs, dk, {state + c, state + c, kWidth}, v + c,
                                                out + c);
    }
    AddSkip(params, head, columns, v, out);
    std::memcpy(params.out + (token * heads + head) * dv + begin, out, bytes);
    if (t + 1 == snapshot) store(params.rows.snapshot(row));
  }
  store(params.rows.after(row));
}

template <bool kDelta, bool kChannels>
void Scan(const StateScanParams& params, std::uint32_t row, std::uint32_t head, std::size_t begin,
          std::size_t end) {
  const bool in_place = params.rows.tokens_of(row) == 1 && params.rows.before(row) != nullptr &&
                        params.rows.snapshot_tokens(row) == 0 && (end - begin) % kColumns == 0;
  if (in_place) return ScanToken<kDelta, kChannels>(params, row, head, begin, end - begin);
  for (; begin < end; begin += internal::kScanColumns) {
    ScanBlock<kDelta, kChannels>(params, row, head, begin,
                                 HWY_MIN(end - begin, std::size_t{internal::kScanColumns}));
  }
}

void ScanHead(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
              std::uint32_t begin, std::uint32_t end) {
  const auto scan = params.delta
                        ? (params.decays_channels ? Scan<true, true> : Scan<true, false>)
                        : (params.decays_channels ? Scan<false, true> : Scan<false, false>);
  scan(params, row, head, begin, end);
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
