// The gated product is bound by memory. With bf16 it reads 4 bytes and writes 2 per element. Each
// thread makes one 16-byte access per operand if addresses are aligned. Grid: x is the row, y a
// block of columns. Plain silu has a separate kernel. All other activations share a kernel, whose
// branches are uniform.

#include <cstdint>
#include <type_traits>

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

// U is the type of up.
template <typename T, typename U>
struct GatedProductArgs {
  const T* gate;
  const U* up;  // null: 1
  T* y;
  std::int64_t gate_stride;
  std::int64_t up_stride;
  std::int64_t y_stride;
  std::uint32_t columns;
  GateShape shape;
};

template <typename T, typename U, typename Product>
__device__ __forceinline__ void WriteProducts(const GatedProductArgs<T, U>& args,
                                              const Product& product) {
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t first = (cuda::BlockY() * kThreads + cuda::ThreadIndex()) * kWidth<T>;
  if (first >= args.columns) return;
  const T* const gate = args.gate + row * args.gate_stride + first;
  const U* const up = args.up == nullptr ? nullptr : args.up + row * args.up_stride + first;
  T* const y = args.y + row * args.y_stride + first;
  if (first + kWidth<T> <= args.columns) {
    const Vec<T, kWidth<T>> g = cache::LoadVector<kWidth<T>>(gate);
    Vec<U, kWidth<T>> u{};
    if (up != nullptr) u = cache::LoadVector<kWidth<T>>(up);
    Vec<T, kWidth<T>> out;
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      out[i] = FromFloat<T>(product(ToFloat(g[i]), up == nullptr ? 1.0f : ToFloat(u[i])));
    }
    cache::StoreVector<kWidth<T>>(y, out);
    return;
  }
  for (std::uint32_t i = 0; i < args.columns - first; ++i) {
    y[i] = FromFloat<T>(product(ToFloat(gate[i]), up == nullptr ? 1.0f : ToFloat(up[i])));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SiluProductKernel(const GatedProductArgs<T, T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  WriteProducts(args, cuda::SiluProduct());
}

template <typename T, typename U>
__global__ void __launch_bounds__(kThreads) GatedProductKernel(const GatedProductArgs<T, U> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  WriteProducts(args, cuda::ShapedProduct{args.shape});
}

template <typename T, typename U>
absl::Status LaunchProduct(const CudaContext& context, const GatedProductParams& params) {
  constexpr std::uint32_t kColumns = kThreads * kWidth<T>;
  const cuda::LaunchShape shape{
      .blocks_x = params.num_rows,
      .blocks_y = params.columns / kColumns + (params.columns % kColumns != 0),
      .threads = kThreads,
      .programmatic = true};
  const GatedProductArgs<T, U> args{params.gate.as<T>(), params.up.as<U>(), params.y.as<T>(),
                                    params.gate_stride,  params.up_stride,  params.y_stride,
                                    params.columns,      params.shape};
  if constexpr (std::is_same_v<T, U>) {
    if (params.shape == GateShape{}) {
      return cuda::Launch(context, "silu_product", SiluProductKernel<T>, shape, args);
    }
  }
  return cuda::Launch(context, "gated_product", GatedProductKernel<T, U>, shape, args);
}

}  // namespace

namespace internal {

absl::Status GatedProductCuda(const CudaContext& context, const GatedProductParams& params) {
  const DType dtype = params.gate.dtype();
  const DType up = params.up.is_null() ? dtype : params.up.dtype();
  if (params.y.dtype() == dtype) {
    if (dtype == DType::kF32 && up == dtype) return LaunchProduct<float, float>(context, params);
    if (dtype == DType::kBF16 && up == dtype) return LaunchProduct<BF16, BF16>(context, params);
    if (dtype == DType::kBF16 && up == DType::kF32) {
      return LaunchProduct<BF16, float>(context, params);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "gated product of ", DTypeName(dtype), " and ", DTypeName(up), " to ",
      DTypeName(params.y.dtype()),
      ": a GPU requires gate and y of one type, f32 or bf16, and up of that type or f32"));
}

}  // namespace internal
}  // namespace quire::kernels
