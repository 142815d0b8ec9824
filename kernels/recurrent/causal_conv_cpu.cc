// Reference implementation of the causal convolution: channels and tokens in index order.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/recurrent/causal_conv.h"

namespace quire::kernels::internal {

void CausalConvCpu(const CausalConvParams& params, std::uint32_t row, std::uint32_t begin,
                   std::uint32_t end) {
  const std::size_t channels = params.channels, width = params.width;
  const float* const before = params.rows.before(row);
  const std::uint32_t first = params.rows.row_offsets[row];
  for (std::size_t c = begin; c < end; ++c) {
    std::array<float, kMaxTaps> window{};  // inputs of the last `width` tokens, oldest first
    for (std::size_t j = 0; before != nullptr && j + 1 < width; ++j) {
      window[j + 1] = before[j * channels + c];
    }
    const auto store = [&](float* state) {
      for (std::size_t j = 0; j + 1 < width; ++j) state[j * channels + c] = window[j + 1];
    };
    for (std::uint32_t t = 0; t < params.rows.tokens_of(row); ++t) {
      float* const x = params.x + (first + t) * params.x_stride + c;
      std::shift_left(window.begin(), window.begin() + static_cast<std::ptrdiff_t>(width), 1);
      window[width - 1] = *x;
      float sum = params.bias == nullptr ? 0.0f : params.bias[c];
      for (std::size_t j = 0; j < width; ++j) sum += params.weight[c * width + j] * window[j];
      *x = params.silu ? sum / (1.0f + std::exp(-sum)) : sum;
      if (t + 1 == params.rows.snapshot_tokens(row)) store(params.rows.snapshot(row));
    }
    store(params.rows.after(row));
  }
}

}  // namespace quire::kernels::internal
