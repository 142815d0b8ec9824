// Channels are lanes. The inputs of the last tokens stay in registers while the tokens of a row are
// computed in order. 4 bytes in and 4 out per element.

#include <cstddef>
#include <cstdint>

#include "kernels/recurrent/causal_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent/causal_conv_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/recurrent/recurrent_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Computes up to kLanes channels of a row from channel c on.
HWY_NOINLINE void ConvLanes(const CausalConvParams& params, std::uint32_t row, std::size_t c,
                            std::size_t count) {
  const DF d;
  const std::size_t channels = params.channels, width = params.width;
  VF weight[kMaxTaps];
  VF window[kMaxTaps];  // inputs of the last `width` tokens, oldest first
  HWY_ALIGN float lanes[kLanes] = {};
  const float* const before = params.rows.before(row);
  for (std::size_t j = 0; j < width; ++j) {
    for (std::size_t lane = 0; lane < count; ++lane) {
      lanes[lane] = params.weight[(c + lane) * width + j];
    }
    weight[j] = hn::Load(d, lanes);
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
    ConvLanes(params, row, c, HWY_MIN(kLanes, end - c));
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
