// Looks up rows of the embedding matrix. There is one block per token, with columns strided over
// the threads. A row has at most 8 KB, so launch latency dominates.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/elementwise/embedding.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbeddingKernel(const T* table, const std::int32_t* tokens, float* y, std::int64_t y_stride,
                    std::uint32_t hidden, float scale) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const T* const from = table + static_cast<std::int64_t>(tokens[row]) * hidden;
  float* const to = y + row * y_stride;
  for (std::uint32_t i = cuda::ThreadIndex(); i < hidden; i += kThreads) {
    to[i] = ToFloat(from[i]) * scale;
  }
}

template <typename T>
absl::Status LaunchEmbedding(const CudaContext& context, const EmbeddingParams& params) {
  return cuda::Launch(context, "embedding", EmbeddingKernel<T>,
                      {.blocks_x = params.num_rows, .threads = kThreads, .programmatic = true},
                      static_cast<const T*>(params.table), params.tokens, params.y, params.y_stride,
                      params.hidden, params.scale);
}

}  // namespace

namespace internal {

absl::Status EmbeddingCuda(const CudaContext& context, const EmbeddingParams& params) {
  switch (params.dtype) {
    case DType::kF32:
      return LaunchEmbedding<float>(context, params);
    case DType::kBF16:
      return LaunchEmbedding<BF16>(context, params);
    case DType::kF16:
      return LaunchEmbedding<F16>(context, params);
    default:
      return absl::InvalidArgumentError(absl::StrCat("embedding table is ", DTypeName(params.dtype),
                                                     ", supported are f32, bf16 and f16"));
  }
}

}  // namespace internal
}  // namespace quire::kernels
