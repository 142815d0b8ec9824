#pragma once

// The causal convolution of recurrent layers: a short filter over the tokens of each channel.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/recurrent/state_rows.h"

namespace quire::kernels {

// Maximum number of taps.
inline constexpr std::uint32_t kMaxTaps = 8;

struct CausalConvParams {
  StateRows rows;       // state [width - 1, channels]: the inputs of the last tokens, oldest first
  float* x;             // [tokens, channels], rows x_stride apart; replaced by the result
  const float* weight;  // [channels, width], the tap of the current token last
  const float* bias = nullptr;  // [channels]; null: none
  std::int64_t x_stride;
  std::uint32_t channels;
  std::uint32_t width;
  bool silu = true;
};

// Computes y_t = bias + sum over j of w_j x_(t - width + 1 + j), j ascending, for each channel in
// f32. With `silu`, the result is y * sigmoid(y). Inputs before the first token of a sequence are
// 0. The state stores inputs, not results. A token's result depends only on its own input and the
// inputs of the width - 1 tokens before it, so any division of a sequence into steps gives the same
// bits. Returns INVALID_ARGUMENT if width is not 1 to kMaxTaps or x_stride is less than channels.
absl::Status CausalConv(const Backend& backend, const CausalConvParams& params);

namespace internal {

// Both compute channels [begin, end) of a batch row. CausalConvCpu is the reference, CausalConvSimd
// the fast path.
void CausalConvCpu(const CausalConvParams& params, std::uint32_t row, std::uint32_t begin,
                   std::uint32_t end);
void CausalConvSimd(const CausalConvParams& params, std::uint32_t row, std::uint32_t begin,
                    std::uint32_t end);

absl::Status CausalConvCuda(const CudaContext& context, const CausalConvParams& params);

}  // namespace internal
}  // namespace quire::kernels
