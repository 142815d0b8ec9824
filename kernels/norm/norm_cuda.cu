// The norm: one block a row (norm_row.cuh). Groups, which are heads, have a warp each: lane l owns
// elements 4 (l + 32 j) .. + 3.
//
// Bound by memory: 8 bytes in and 6 (f32 results: 8) out per element with a residual, 4 and 2 (4)
// without.

#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_row.cuh"

namespace quire::kernels {
namespace {

using norm_row::kThreads;
using norm_row::kWarps;
using norm_row::NormRow;
using norm_row::RmsNormArgs;

template <typename X, typename Y>
__global__ void __launch_bounds__(kThreads) RmsNormKernel(const RmsNormArgs<X, Y> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  norm_row::WriteRow<X, Y>(args, cuda::BlockX(), reinterpret_cast<float*>(cuda::SharedMemory16()));
}

// Group g of row m: a warp. There is no residual.
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
    sum = norm_row::AddSquares(norm_row::ReadGroup(args, row, at), sum);
  }
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  const float mean = cuda::Div(sum, static_cast<float>(args.hidden));
  const float inverse = cuda::Div(1.0f, cuda::Sqrt(cuda::Add(mean, args.epsilon)));
  for (std::uint32_t at = first; at < args.hidden; at += kStripe) {
    norm_row::WriteGroup(args, row, at, norm_row::ReadGroup(args, row, at), inverse);
  }
}

template <typename X, typename Y>
absl::Status LaunchRmsNorm(const CudaContext& context, const RmsNormParams& params) {
  const RmsNormArgs<X, Y> args = norm_row::ArgsOf<X, Y>(params);
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
        ", on a GPU both types are one and rows are not gathered"));
  }
  if (params.x.is_f32() && params.y.is_f32()) return LaunchRmsNorm<float, float>(context, params);
  if (params.x.is_f32() && to_bf16) return LaunchRmsNorm<float, BF16>(context, params);
  if (params.x.dtype() == DType::kBF16 && to_bf16 && params.residual == nullptr) {
    return LaunchRmsNorm<BF16, BF16>(context, params);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("norm of ", DTypeName(params.x.dtype()), " to ", DTypeName(params.y.dtype()),
                   params.residual == nullptr ? "" : " with a residual",
                   ", on a GPU it is f32 to f32 or bf16, or bf16 to bf16 without a residual"));
}

}  // namespace internal
}  // namespace quire::kernels
