// One thread computes a channel of a row and processes the row's tokens in order. Inputs of 8
// tokens are loaded before any of them is used, so that their latencies overlap. The last inputs
// stay in registers. Results have the bits of the CPU's vector form with fused multiply-add.
//
// The kernel is bound by memory: 8 bytes per element, and 8 (width - 1) bytes of states per channel
// of a row.

#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/recurrent_math.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kTile = 8;                // tokens that are loaded together
constexpr std::uint32_t kHistory = kMaxTaps - 1;  // inputs before a token

// Writes the state of a channel: the last width - 1 of the kHistory inputs, oldest first.
__device__ __forceinline__ void StoreState(const float* inputs, const CausalConvParams& params,
                                           std::uint32_t channel, float* state) {
  if (state == nullptr) return;
#pragma unroll
  for (std::uint32_t j = 0; j < kHistory; ++j) {
    const std::uint32_t age = kHistory - j;  // in tokens, 1 for the last
    if (age >= params.width) continue;
    state[std::int64_t{params.width - 1 - age} * params.channels + channel] = inputs[j];
  }
}

// Computes the result from the token's input and the kHistory inputs before it.
__device__ __forceinline__ float Filter(const float* inputs, const float* weight,
                                        const CausalConvParams& params, float bias) {
  float sum = bias;
#pragma unroll
  for (std::uint32_t j = 0; j < kMaxTaps; ++j) {
    if (kHistory - j < params.width) sum = cuda::Fma(weight[j], inputs[j], sum);
  }
  return params.silu ? cuda::Silu(sum) : sum;
}

__global__ void __launch_bounds__(kThreads) CausalConvKernel(const CausalConvParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const cuda::RowOfBlock row(params.rows);
  const std::uint32_t channel = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (row.tokens == 0 || channel >= params.channels) return;
  float weight[kMaxTaps];          // taps, that of the current input last; 0 beyond the width
  float inputs[kHistory + kTile];  // kHistory inputs before the tile, then the tile's inputs
#pragma unroll
  for (std::uint32_t j = 0; j < kMaxTaps; ++j) {
    const std::uint32_t age = kHistory - j;
    const bool valid = age < params.width;
    const std::int64_t tap = std::int64_t{params.width} - 1 - age;
    weight[j] = valid ? params.weight[std::int64_t{channel} * params.width + tap] : 0.0f;
    if (j == kHistory) continue;
    inputs[j] = valid && row.before != nullptr ? row.before[tap * params.channels + channel] : 0.0f;
  }
  const float bias = params.bias == nullptr ? 0.0f : params.bias[channel];
  float* const x = params.x + std::int64_t{row.first} * params.x_stride + channel;
  for (std::uint32_t begin = 0; begin < row.tokens; begin += kTile) {
#pragma unroll
    for (std::uint32_t i = 0; i < kTile; ++i) {
      const std::uint32_t token = begin + i;
      inputs[kHistory + i] = token < row.tokens ? x[token * params.x_stride] : 0.0f;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kTile; ++i) {
      const std::uint32_t token = begin + i;
      if (token >= row.tokens) continue;
      x[token * params.x_stride] = Filter(inputs + i, weight, params, bias);
      if (token + 1 == row.snapshot) StoreState(inputs + i + 1, params, channel, row.snapshot_to);
      if (token + 1 == row.tokens) StoreState(inputs + i + 1, params, channel, row.after);
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kHistory; ++j) inputs[j] = inputs[j + kTile];
  }
}

}  // namespace

namespace internal {

absl::Status CausalConvCuda(const CudaContext& context, const CausalConvParams& params) {
  return cuda::Launch(context, "causal_conv", CausalConvKernel,
                      {.blocks_x = params.rows.max_live_rows(),
                       .blocks_y = (params.channels + kThreads - 1) / kThreads,
                       .threads = kThreads,
                       .programmatic = true},
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
