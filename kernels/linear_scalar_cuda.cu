// Linear without tensor cores, for f32 activations and for any K: a block computes 32 features x 32
// rows from tiles of 32 inputs in shared memory. The arithmetic, products and their order, is that
// of the CPU's linear_simd.cc, so it yields the same bits; it is the oracle on the device, not
// fast.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kTile = 32;  // features, rows and inputs
constexpr std::uint32_t kPitch = kTile + 1;
constexpr std::uint32_t kRowsPerThread = kTile * kTile / kThreads;
static_assert(internal::kLinearPart % kTile == 0);

template <typename X, typename W>
struct ScalarArgs {
  const X* x;
  const W* w;  // [n, k]
  const float* bias;
  const float* residual;
  void* y;
  std::int64_t x_stride;
  std::int64_t residual_stride;
  std::int64_t y_stride;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t num_rows;
  bool y_is_bf16;
};

// to[32][kPitch] <- rows first .. of from [rows, k], inputs k0 .., zeros outside.
template <typename T>
__device__ __forceinline__ void LoadTile(float* to, const T* from, std::int64_t stride,
                                         std::uint32_t first, std::uint32_t rows, std::uint32_t k0,
                                         std::uint32_t k) {
  const std::uint32_t column = cuda::ThreadIndex() % kTile;
#pragma unroll
  for (std::uint32_t i = 0; i < kRowsPerThread; ++i) {
    const std::uint32_t row = cuda::ThreadIndex() / kTile + i * (kThreads / kTile);
    const bool inside = first + row < rows && k0 + column < k;
    to[row * kPitch + column] = inside ? ToFloat(from[(first + row) * stride + k0 + column]) : 0.0f;
  }
}

template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) LinearScalarKernel(const ScalarArgs<X, W> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  float* const w_tile = reinterpret_cast<float*>(cuda::SharedMemory16());  // [features][kPitch]
  float* const x_tile = w_tile + kTile * kPitch;                           // [rows][kPitch]
  const std::uint32_t feature = cuda::ThreadIndex() % kTile;
  const std::uint32_t first_row = cuda::ThreadIndex() / kTile * kRowsPerThread;
  const std::uint32_t n0 = cuda::BlockX() * kTile;
  const std::uint32_t m0 = cuda::BlockY() * kTile;
  float total[kRowsPerThread] = {};
  float part[kRowsPerThread] = {};
  for (std::uint32_t k0 = 0; k0 < args.k; k0 += kTile) {
    LoadTile(w_tile, args.w, args.k, n0, args.n, k0, args.k);
    LoadTile(x_tile, args.x, args.x_stride, m0, args.num_rows, k0, args.k);
    cuda::SyncBlock();
    // Zeros beyond K would turn a sum of -0 into +0, so they are not added.
    const std::uint32_t inputs = args.k - k0 < kTile ? args.k - k0 : kTile;
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const float w = w_tile[feature * kPitch + i];
#pragma unroll
      for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
        part[r] = cuda::Fma(x_tile[(first_row + r) * kPitch + i], w, part[r]);
      }
    }
    cuda::SyncBlock();
    if ((k0 + kTile) % internal::kLinearPart == 0 || k0 + kTile >= args.k) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
        total[r] = cuda::Add(total[r], part[r]);
        part[r] = 0;
      }
    }
  }
  const std::uint32_t n = n0 + feature;
#pragma unroll
  for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
    const std::int64_t m = m0 + first_row + r;
    if (n >= args.n || m >= args.num_rows) continue;
    float y = total[r];
    if (args.bias != nullptr) y = cuda::Add(y, args.bias[n]);
    if (args.residual != nullptr) y = cuda::Add(y, args.residual[m * args.residual_stride + n]);
    if (args.y_is_bf16) {
      static_cast<BF16*>(args.y)[m * args.y_stride + n] = BF16::FromFloat(y);
    } else {
      static_cast<float*>(args.y)[m * args.y_stride + n] = y;
    }
  }
}

template <typename X, typename W>
absl::Status LaunchScalar(const CudaContext& context, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const ScalarArgs<X, W> args{.x = params.x.as<X>(),
                              .w = static_cast<const W*>(weight.data()),
                              .bias = params.bias,
                              .residual = params.residual,
                              .y = params.y.data(),
                              .x_stride = params.x_stride,
                              .residual_stride = params.residual_stride,
                              .y_stride = params.y_stride,
                              .n = weight.n(),
                              .k = weight.k(),
                              .num_rows = params.num_rows,
                              .y_is_bf16 = params.y.dtype() == DType::kBF16};
  return cuda::Launch(context, "linear_scalar", LinearScalarKernel<X, W>,
                      {.blocks_x = (weight.n() + kTile - 1) / kTile,
                       .blocks_y = (params.num_rows + kTile - 1) / kTile,
                       .threads = kThreads,
                       .shared_bytes = 2 * kTile * kPitch * sizeof(float),
                       .programmatic = true},
                      args);
}

}  // namespace

namespace internal {

absl::Status LinearScalarCuda(const CudaContext& context, const LinearParams& params) {
  const DType x = params.x.dtype();
  const DType w = params.weight->dtype();
  if (x == DType::kBF16 && w == DType::kBF16) return LaunchScalar<BF16, BF16>(context, params);
  if (x == DType::kF32 && w == DType::kF32) return LaunchScalar<float, float>(context, params);
  if (x == DType::kF32 && w == DType::kBF16) return LaunchScalar<float, BF16>(context, params);
  if (x == DType::kF32 && w == DType::kF16) return LaunchScalar<float, F16>(context, params);
  return absl::InvalidArgumentError(
      absl::StrCat("linear has x ", DTypeName(x), " and weights ", DTypeName(w),
                   ", supported are f32 by f32, bf16 or f16, and bf16 by bf16"));
}

}  // namespace internal
}  // namespace quire::kernels
