// The norm: one block per row. The row stays in registers between the two passes.
//
// Thread t processes elements 4 (t + 256 j) to 4 (t + 256 j) + 3 for j = 0, 1, ... and adds their
// squares in that order. Each warp then adds the sums of its lanes by a butterfly, and the eight
// warp sums are added in order. The order does not depend on the batch, on addresses or on how many
// elements fit into registers.
//
// With groups (heads), each group has one warp. Lane l processes elements 4 (l + 32 j) to 4 (l + 32
// j) + 3.
//
// The kernel is bound by memory. Bytes per element with a residual: 8 in and 6 out (8 out for f32
// results). Without a residual: 4 in and 2 out (4 out for f32 results).

#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/norm/norm.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
// Number of 4-element vectors that a thread keeps in registers, enough for rows up to 8192. Longer
// rows are read twice.
constexpr std::uint32_t kRegisterVectors = 8;

template <typename X, typename Y>
struct RmsNormArgs {
  const X* x;
  const float* weight;
  float* residual;
  Y* y;
  const std::uint32_t* row_indices;
  std::int64_t x_stride;
  std::int64_t residual_stride;
  std::int64_t y_stride;
  std::uint32_t hidden;
  float epsilon;
  float weight_offset;
  bool aligned;  // every 4-element vector is aligned and complete
};

__device__ __forceinline__ float4 Load4(const float* from, std::uint32_t valid, bool aligned) {
  if (aligned) return *reinterpret_cast<const float4*>(from);
  float4 v{0.0f, 0.0f, 0.0f, 0.0f};
  v.x = from[0];
  if (valid > 1) v.y = from[1];
  if (valid > 2) v.z = from[2];
  if (valid > 3) v.w = from[3];
  return v;
}

__device__ __forceinline__ float4 Load4(const BF16* from, std::uint32_t valid, bool aligned) {
  if (aligned) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    const float2 low = cuda::UnpackBF16(pairs.x);
    const float2 high = cuda::UnpackBF16(pairs.y);
    return {low.x, low.y, high.x, high.y};
  }
  float4 v{0.0f, 0.0f, 0.0f, 0.0f};
  v.x = from[0].ToFloat();
  if (valid > 1) v.y = from[1].ToFloat();
  if (valid > 2) v.z = from[2].ToFloat();
  if (valid > 3) v.w = from[3].ToFloat();
  return v;
}

__device__ __forceinline__ void Store4(float* to, float4 v, std::uint32_t valid, bool aligned) {
  if (aligned) {
    *reinterpret_cast<float4*>(to) = v;
    return;
  }
  to[0] = v.x;
  if (valid > 1) to[1] = v.y;
  if (valid > 2) to[2] = v.z;
  if (valid > 3) to[3] = v.w;
}

__device__ __forceinline__ void Store4(BF16* to, float4 v, std::uint32_t valid, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint2*>(to) = {cuda::PackBF16(v.x, v.y), cuda::PackBF16(v.z, v.w)};
    return;
  }
  to[0] = BF16::FromFloat(v.x);
  if (valid > 1) to[1] = BF16::FromFloat(v.y);
  if (valid > 2) to[2] = BF16::FromFloat(v.z);
  if (valid > 3) to[3] = BF16::FromFloat(v.w);
}

// Pointers to the arrays of one row.
template <typename X, typename Y>
struct NormRow {
  const X* x;
  float* residual;
  Y* y;
  __device__ __forceinline__ NormRow(const RmsNormArgs<X, Y>& args, std::int64_t m) {
    const std::int64_t from = args.row_indices == nullptr ? m : std::int64_t{args.row_indices[m]};
    x = args.x + from * args.x_stride;
    residual = args.residual == nullptr ? nullptr : args.residual + from * args.residual_stride;
    y = args.y + m * args.y_stride;
  }
};

// Returns 4 elements of x + residual and writes them back to residual. Returns zeros after the end
// of the row.
template <typename X, typename Y>
__device__ __forceinline__ float4 ReadVector(const RmsNormArgs<X, Y>& args,
                                             const NormRow<X, Y>& row, std::uint32_t at) {
  if (at >= args.hidden) return {0.0f, 0.0f, 0.0f, 0.0f};
  const std::uint32_t valid = args.hidden - at;
  float4 v = Load4(row.x + at, valid, args.aligned);
  if (std::is_same_v<X, float> && row.residual != nullptr) {
    const float4 r = Load4(row.residual + at, valid, args.aligned);
    v = {cuda::Add(v.x, r.x), cuda::Add(v.y, r.y), cuda::Add(v.z, r.z), cuda::Add(v.w, r.w)};
    Store4(row.residual + at, v, valid, args.aligned);
  }
  return v;
}

__device__ __forceinline__ float AddSquares(float4 v, float sum) {
  sum = cuda::Fma(v.x, v.x, sum);
  sum = cuda::Fma(v.y, v.y, sum);
  sum = cuda::Fma(v.z, v.z, sum);
  return cuda::Fma(v.w, v.w, sum);
}

template <typename X, typename Y>
__device__ __forceinline__ void WriteVector(const RmsNormArgs<X, Y>& args, const NormRow<X, Y>& row,
                                            std::uint32_t at, float4 v, float inverse) {
  if (at >= args.hidden) return;
  const std::uint32_t valid = args.hidden - at;
  float4 w{1.0f, 1.0f, 1.0f, 1.0f};
  if (args.weight != nullptr) w = Load4(args.weight + at, valid, args.aligned);
  const float offset = args.weight_offset;
  v = {cuda::Mul(cuda::Mul(v.x, inverse), cuda::Add(w.x, offset)),
       cuda::Mul(cuda::Mul(v.y, inverse), cuda::Add(w.y, offset)),
       cuda::Mul(cuda::Mul(v.z, inverse), cuda::Add(w.z, offset)),
       cuda::Mul(cuda::Mul(v.w, inverse), cuda::Add(w.w, offset))};
  Store4(row.y + at, v, valid, args.aligned);
}

// Returns the sum over the block, with the same bits in every thread.
__device__ __forceinline__ float BlockSum(float sum) {
  auto* const sums = reinterpret_cast<float*>(cuda::SharedMemory16());
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  const std::uint32_t warp = cuda::Warp();
  if (cuda::Lane() == 0) sums[warp] = sum;
  cuda::SyncBlock();
  float total = sums[0];
#pragma unroll
  for (std::uint32_t i = 1; i < kWarps; ++i) total = cuda::Add(total, sums[i]);
  return total;
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kThreads) RmsNormKernel(const RmsNormArgs<X, Y> args) {
  constexpr std::uint32_t kStripe = 4 * kThreads;
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const NormRow<X, Y> row(args, cuda::BlockX());
  const std::uint32_t first = 4 * cuda::ThreadIndex();
  float4 vectors[kRegisterVectors];
  float sum = 0.0f;
#pragma unroll
  for (std::uint32_t j = 0; j < kRegisterVectors; ++j) {
    vectors[j] = ReadVector(args, row, first + j * kStripe);
    sum = AddSquares(vectors[j], sum);
  }
  for (std::uint32_t at = first + kRegisterVectors * kStripe; at < args.hidden; at += kStripe) {
    sum = AddSquares(ReadVector(args, row, at), sum);
  }
  const float mean = cuda::Div(BlockSum(sum), static_cast<float>(args.hidden));
  const float inverse = cuda::Div(1.0f, cuda::Sqrt(cuda::Add(mean, args.epsilon)));
#pragma unroll
  for (std::uint32_t j = 0; j < kRegisterVectors; ++j) {
    WriteVector(args, row, first + j * kStripe, vectors[j], inverse);
  }
  for (std::uint32_t at = first + kRegisterVectors * kStripe; at < args.hidden; at += kStripe) {
    const std::uint32_t valid = args.hidden - at;
    const bool summed = std::is_same_v<X, float> && row.residual != nullptr;
    WriteVector(args, row, at,
                summed ? Load4(row.residual + at, valid, args.aligned)
                       : Load4(row.x + at, valid, args.aligned),
                inverse);
  }
}

// One warp normalizes group g of row m, without a residual.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    GroupNormKernel(const RmsNormArgs<T, T> args, const std::uint32_t groups) {
  constexpr std::uint32_t kStripe = 4 * cuda::kWarpSize;
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t group = cuda::BlockY() * kWarps + cuda::Warp();
  if (group >= groups) return;
  NormRow<T, T> row(args, cuda::BlockX());
  row.x += std::int64_t{group} * args.hidden;
  row.y += std::int64_t{group} * args.hidden;
  const std::uint32_t first = 4 * cuda::Lane();
  float sum = 0.0f;
  for (std::uint32_t at = first; at < args.hidden; at += kStripe) {
    sum = AddSquares(ReadVector(args, row, at), sum);
  }
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  const float mean = cuda::Div(sum, static_cast<float>(args.hidden));
  const float inverse = cuda::Div(1.0f, cuda::Sqrt(cuda::Add(mean, args.epsilon)));
  for (std::uint32_t at = first; at < args.hidden; at += kStripe) {
    WriteVector(args, row, at, ReadVector(args, row, at), inverse);
  }
}

bool IsAligned(const void* pointer, std::int64_t stride_bytes, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 &&
         static_cast<std::uintptr_t>(stride_bytes) % bytes == 0;
}

template <typename X, typename Y>
absl::Status LaunchRmsNorm(const CudaContext& context, const RmsNormParams& params) {
  const bool aligned =
      params.hidden % 4 == 0 &&
      IsAligned(params.x.data(), params.x_stride * std::int64_t{sizeof(X)}, 4 * sizeof(X)) &&
      IsAligned(params.weight, 0, 16) &&
      IsAligned(params.residual, params.residual_stride * 4, 16) &&
      IsAligned(params.y.data(), params.y_stride * std::int64_t{sizeof(Y)}, 4 * sizeof(Y));
  const RmsNormArgs<X, Y> args{params.x.as<X>(),       params.weight,        params.residual,
                               params.y.as<Y>(),       params.row_indices,   params.x_stride,
                               params.residual_stride, params.y_stride,      params.hidden,
                               params.epsilon,         params.weight_offset, aligned};
  if constexpr (std::is_same_v<X, Y>) {
    if (params.groups != 1) {
      return cuda::Launch(context, "group_norm", GroupNormKernel<X>,
                          {.blocks_x = params.num_rows,
                           .blocks_y = (params.groups + kWarps - 1) / kWarps,
                           .threads = kThreads,
                           .programmatic = true},
                          args, params.groups);
    }
  }
  return cuda::Launch(context, "rms_norm", RmsNormKernel<X, Y>,
                      {.blocks_x = params.num_rows,
                       .threads = kThreads,
                       .shared_bytes = kWarps * sizeof(float),
                       .programmatic = true},
                      args);
}

}  // namespace

namespace internal {

absl::Status RmsNormCuda(const CudaContext& context, const RmsNormParams& params) {
  const bool to_bf16 = params.y.dtype() == DType::kBF16;
  if (params.groups != 1 &&
      (params.row_indices != nullptr || params.x.dtype() != params.y.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "norm of ", params.groups, " groups from ", DTypeName(params.x.dtype()), " to ",
        DTypeName(params.y.dtype()), params.row_indices == nullptr ? "" : " with row indices",
        ": a GPU requires equal types and no row indices"));
  }
  if (params.x.is_f32() && params.y.is_f32()) return LaunchRmsNorm<float, float>(context, params);
  if (params.x.is_f32() && to_bf16) return LaunchRmsNorm<float, BF16>(context, params);
  if (params.x.dtype() == DType::kBF16 && to_bf16 && params.residual == nullptr) {
    return LaunchRmsNorm<BF16, BF16>(context, params);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("norm of ", DTypeName(params.x.dtype()), " to ", DTypeName(params.y.dtype()),
                   params.residual == nullptr ? "" : " with a residual",
                   ": a GPU supports f32 to f32 or bf16, and bf16 to bf16 without a residual"));
}

}  // namespace internal
}  // namespace quire::kernels
