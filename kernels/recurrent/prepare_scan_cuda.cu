// Grid: x is the row, y a block of warps. Each of the first warps of a row normalizes one head of q
// or k. Lane l processes elements l, l + 32, ... and adds their squares in that order. A butterfly
// adds the sums of the lanes. The other warps compute one decay or rate per lane, with the bits of
// the CPU's vector form with fused multiply-add.
//
// The kernel is bound by memory: 8 bytes per element of q and k, 8 per decay and 8 per rate.

#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/recurrent/prepare_scan.h"
#include "kernels/recurrent/recurrent_math.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;

// Number of warps that normalize the heads of a row.
QUIRE_HOST_DEVICE inline std::uint32_t HeadWarps(const PrepareScanParams& params) {
  return params.qk_l2_eps == 0 ? 0 : 2 * params.key_heads;
}

__device__ __forceinline__ void Normalize(float* x, std::uint32_t size, float epsilon,
                                          float scale) {
  float sum = 0.0f;
  for (std::uint32_t i = cuda::Lane(); i < size; i += cuda::kWarpSize) {
    sum = cuda::Fma(x[i], x[i], sum);
  }
  sum = cuda::WarpSum(sum);
  const float inverse = cuda::Div(scale, cuda::Sqrt(cuda::Add(sum, epsilon)));
  for (std::uint32_t i = cuda::Lane(); i < size; i += cuda::kWarpSize) {
    x[i] = cuda::Mul(x[i], inverse);
  }
}

// Computes decay c of a row. Without b also computes the rate.
__device__ __forceinline__ void Decay(const PrepareScanParams& params, std::int64_t m,
                                      std::uint32_t c) {
  const std::uint32_t head = c / (params.channels / params.heads);
  float t = cuda::Softplus(cuda::Add(params.a[m * params.rates_stride + c], params.dt_bias[c]));
  if (params.b == nullptr) {
    // Both comparisons are false for NaN, so NaN is kept.
    t = t < params.dt_min ? params.dt_min : t > params.dt_max ? params.dt_max : t;
    params.rate[m * params.heads + c] = t;
  }
  const float speed = ExactExp(params.a_log[head]);
  params.decay[m * params.channels + c] = ExactExp(-cuda::Mul(speed, t));
}

__global__ void __launch_bounds__(kThreads) PrepareScanKernel(const PrepareScanParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t m = cuda::BlockX();
  const std::uint32_t warp = cuda::BlockY() * kWarps + cuda::Warp();
  const std::uint32_t head_warps = HeadWarps(params);
  if (warp < head_warps) {
    const bool is_q = warp < params.key_heads;
    const std::uint32_t head = is_q ? warp : warp - params.key_heads;
    float* const x =
        (is_q ? params.q : params.k) + m * params.qk_stride + std::int64_t{head} * params.key_size;
    const float size = static_cast<float>(params.key_size);
    const float scale = is_q ? cuda::Div(1.0f, cuda::Sqrt(size)) : 1.0f;
    Normalize(x, params.key_size, params.qk_l2_eps, scale);
    return;
  }
  const std::uint32_t i = (warp - head_warps) * cuda::kWarpSize + cuda::Lane();
  if (i < params.channels) {
    Decay(params, m, i);
  } else if (params.b != nullptr && i - params.channels < params.heads) {
    const std::uint32_t head = i - params.channels;
    params.rate[m * params.heads + head] = cuda::Sigmoid(params.b[m * params.rates_stride + head]);
  }
}

}  // namespace

namespace internal {

absl::Status PrepareScanCuda(const CudaContext& context, const PrepareScanParams& params) {
  const std::uint32_t scalars = params.channels + (params.b == nullptr ? 0 : params.heads);
  const std::uint32_t warps = HeadWarps(params) + (scalars + cuda::kWarpSize - 1) / cuda::kWarpSize;
  return cuda::Launch(context, "prepare_scan", PrepareScanKernel,
                      {.blocks_x = params.num_rows,
                       .blocks_y = (warps + kWarps - 1) / kWarps,
                       .threads = kThreads,
                       .programmatic = true},
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
