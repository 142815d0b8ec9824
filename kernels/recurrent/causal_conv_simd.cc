// Each lane computes one channel. The inputs of the last tokens stay in registers while the tokens
// of a row are computed in order. Memory traffic per element: 4 bytes in and 4 out.

#include <cstddef>
#include <cstdint>

#include "kernels/recurrent/causal_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent/causal_conv_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/recurrent/recurrent_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Loads the taps of `count` channels. Their layout in memory is [channels, width].
template <std::size_t kWidth>
HWY_INLINE void LoadTaps(const float* from, std::size_t width, std::size_t count, VF* taps) {
  const DF d;
  if constexpr (kWidth == 4) {
    if (count >= kLanes) return hn::LoadInterleaved4(d, from, taps[0], taps[1], taps[2], taps[3]);
  }
  HWY_ALIGN float lanes[kLanes] = {};
  for (std::size_t j = 0; j < width; ++j) {
    for (std::size_t lane = 0; lane < count; ++lane) lanes[lane] = from[lane * width + j];
    taps[j] = hn::Load(d, lanes);
  }
}

// Computes up to kLanes channels of a row, starting with channel c. kWidth is the number of taps,
// or 0 if it is not known at compile time. A known number keeps taps and inputs in registers.
template <std::size_t kWidth>
HWY_NOINLINE void ConvLanes(const CausalConvParams& params, std::uint32_t row, std::size_t c,
                            std::size_t count) {
  const DF d;
  const std::size_t channels = params.channels, width = kWidth != 0 ? kWidth : params.width;
  constexpr std::size_t kTaps = kWidth != 0 ? kWidth : kMaxTaps;
  VF weight[kTaps];
  VF window[kTaps];  // inputs of the last `width` tokens, oldest first
  LoadTaps<kWidth>(params.weight + c * width, width, count, weight);
  const float* const before = params.rows.before(row);
  for (std::size_t j = 0; j < width; ++j) {
    window[j] = before == nullptr || j == 0 ? hn::Zero(d)
                                            : LoadSome(before + (j - 1) * channels + c, count);
  }
  const auto store = [&](float* state) HWY_ATTR {
    for (std::size_t j = 1; j < width; ++j) {
      StoreSome(window[j], state + (j - 1) * channels + c, count);
    }
  };
  const VF bias = params.bias == nullptr ? hn::Zero(d) : LoadSome(params.bias + c, count);
  const std::uint32_t tokens = params.rows.tokens_of(row);
  const std::uint32_t snapshot = params.rows.snapshot_tokens(row);
  float* x = params.x + params.rows.row_offsets[row] * params.x_stride + c;
  for (std::uint32_t t = 0; t < tokens; ++t, x += params.x_stride) {
    for (std::size_t j = 1; j < width; ++j) window[j - 1] = window[j];
    window[width - 1] = LoadSome(x, count);
    VF sum = bias;
    for (std::size_t j = 0; j < width; ++j) sum = hn::MulAdd(weight[j], window[j], sum);
    StoreSome(params.silu ? Silu(sum) : sum, x, count);
    if (t + 1 == snapshot) store(params.rows.snapshot(row));
  }
  store(params.rows.after(row));
}

void ConvRow(const CausalConvParams& params, std::uint32_t row, std::uint32_t begin,
             std::uint32_t end) {
  for (std::size_t c = begin; c < end; c += kLanes) {
    const std::size_t count = HWY_MIN(kLanes, end - c);
    if (params.width == 4) {
      ConvLanes<4>(params, row, c, count);
    } else {
      ConvLanes<0>(params, row, c, count);
    }
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(ConvRow);

namespace internal {

void CausalConvSimd(const CausalConvParams& params, std::uint32_t row, std::uint32_t begin,
                    std::uint32_t end) {
  HWY_DYNAMIC_DISPATCH(ConvRow)(params, row, begin, end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
