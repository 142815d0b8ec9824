// The gated product, bound by memory (bf16: 4 bytes in, 2 out). Each thread makes one 16-byte
// access per operand where addresses allow it. Grid: rows by blocks of columns. Plain silu has its
// own kernel. All other activations share a kernel, whose branches are uniform.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/vec.h"
#include "cache_manager/views/kv_vector_access.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/gated_product.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

template <typename T>
struct GatedProductArgs {
  const T* gate;
  const T* up;
  T* y;
  std::int64_t gate_stride;
  std::int64_t up_stride;
  std::int64_t y_stride;
  std::uint32_t columns;
  GateShape shape;
};

template <typename T, typename Product>
__device__ __forceinline__ void WriteProducts(const GatedProductArgs<T>& args,
                                              const Product& product) {
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t first = (cuda::BlockY() * kThreads + cuda::ThreadIndex()) * kWidth<T>;
  if (first >= args.columns) return;
  const T* const gate = args.gate + row * args.gate_stride + first;
  const T* const up = args.up + row * args.up_stride + first;
  T* const y = args.y + row * args.y_stride + first;
  if (first + kWidth<T> <= args.columns) {
    const Vec<T, kWidth<T>> g = cache::LoadVector<kWidth<T>>(gate);
    const Vec<T, kWidth<T>> u = cache::LoadVector<kWidth<T>>(up);
    Vec<T, kWidth<T>> out;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      out[i] = FromFloat<T>(product(ToFloat(g[i]), ToFloat(u[i])));
    }
    cache::StoreVector<kWidth<T>>(y, out);
    return;
  }
  for (std::uint32_t i = 0; i < args.columns - first; ++i) {
    y[i] = FromFloat<T>(product(ToFloat(gate[i]), ToFloat(up[i])));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SiluProductKernel(const GatedProductArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  WriteProducts(args, cuda::SiluProduct());
}

template <typename T>
__global__ void __launch_bounds__(kThreads) GatedProductKernel(const GatedProductArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  WriteProducts(args, cuda::ShapedProduct{args.shape});
}

template <typename T>
absl::Status LaunchProduct(const CudaContext& context, const GatedProductParams& params) {
  constexpr std::uint32_t kColumns = kThreads * kWidth<T>;
  const bool is_silu = params.shape == GateShape{};
  return cuda::Launch(context, is_silu ? "silu_product" : "gated_product",
                      is_silu ? SiluProductKernel<T> : GatedProductKernel<T>,
                      {.blocks_x = params.num_rows,
                       .blocks_y = params.columns / kColumns + (params.columns % kColumns != 0),
                       .threads = kThreads,
                       .programmatic = true},
                      GatedProductArgs<T>{params.gate.as<T>(), params.up.as<T>(), params.y.as<T>(),
                                          params.gate_stride, params.up_stride, params.y_stride,
                                          params.columns, params.shape});
}

}  // namespace

namespace internal {

absl::Status GatedProductCuda(const CudaContext& context, const GatedProductParams& params) {
  const DType dtype = params.gate.dtype();
  if (params.up.dtype() == dtype && params.y.dtype() == dtype) {
    if (dtype == DType::kF32) return LaunchProduct<float>(context, params);
    if (dtype == DType::kBF16) return LaunchProduct<BF16>(context, params);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "gated product of ", DTypeName(dtype), " and ", DTypeName(params.up.dtype()), " to ",
      DTypeName(params.y.dtype()), ": a GPU requires that all are f32 or all are bf16"));
}

}  // namespace internal
}  // namespace quire::kernels
