// Between the QKV product and attention: one warp per (token, head) reads the head once, norms it
// where the model does, rotates it in f32, and writes a q head back in place or a k or v head into
// its page (kv_head.cuh).
//
// A launch of its own, so that attention never reads through TMA what its own kernel wrote. Bound
// by memory: a token's QKV row in, its q row and its page rows out.

#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_store/kv_head.cuh"
#include "kernels/kv_store/qkv_store.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
// Pieces of 32 lanes x 4 columns that a head may have.
constexpr std::uint32_t kPieces = 2;
constexpr std::uint32_t kMaxHeadSize = kv_head::kMaxHeadSize<kPieces>;
using kv_head::kColumns;

template <typename T, typename E>
struct QkvStoreArgs {
  KvView<E> keys;
  KvView<E> values;
  T* qkv;
  kv_head::Rotation rotation;
  kv_head::HeadNorm q_norm;
  kv_head::HeadNorm k_norm;
  const std::int32_t* token_rows;
  const std::int32_t* positions;
  std::int64_t qkv_stride;
  std::uint32_t num_heads;
};

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads)
    QkvStoreKernel(const __grid_constant__ QkvStoreArgs<T, E> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t head = cuda::BlockY() * kWarps + cuda::Warp();
  const std::uint32_t kv_heads = args.keys.num_heads();
  const std::uint32_t head_size = args.keys.head_size();
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0 || head >= args.num_heads + 2 * kv_heads) return;
  T* const x = args.qkv + row * args.qkv_stride + std::int64_t{head} * head_size;
  const bool is_value = head >= args.num_heads + kv_heads;
  kv_head::HeadNorm norm = head < args.num_heads ? args.q_norm : args.k_norm;
  if (is_value) norm.weight = nullptr;
  kv_head::HeadValues<kPieces> values;
  kv_head::ReadHead<kPieces>(args.rotation, x, head_size, row, !is_value, values, norm);
  cuda::SyncWarp();
  if (head < args.num_heads) {
#pragma unroll
    for (std::uint32_t j = 0; j < kPieces; ++j) {
      const std::uint32_t d = kv_head::FirstColumn(j);
      if (d >= head_size) break;
      Vec<T, kColumns> out;
#pragma unroll
      for (std::uint32_t c = 0; c < kColumns; ++c) out.lane[c] = FromFloat<T>(values[j][c]);
      cache::StoreVector<kColumns>(x + d, out);
    }
    return;
  }
  kv_head::StoreHead<kPieces, E>(
      is_value ? args.values : args.keys,
      {static_cast<std::uint32_t>(batch_row), head - args.num_heads - (is_value ? kv_heads : 0),
       static_cast<std::uint32_t>(args.positions[row])},
      values);
}

template <typename T, typename E>
absl::Status LaunchQkvStore(const CudaContext& context, const QkvStoreParams& params,
                            const KvView<E>& keys) {
  const std::uint32_t heads = params.num_heads + 2 * keys.num_heads();
  return cuda::Launch(
      context, "qkv_store", QkvStoreKernel<T, E>,
      {.blocks_x = params.num_rows,
       .blocks_y = (heads + kWarps - 1) / kWarps,
       .threads = kThreads,
       .programmatic = true},
      QkvStoreArgs<T, E>{
          keys,
          std::get<KvView<E>>(*params.values),
          params.qkv.as<T>(),
          {params.cosines, params.sines, params.rotary_size, params.rotary_first, params.style},
          {params.q_norm, params.norm_epsilon},
          {params.k_norm, params.norm_epsilon},
          params.token_rows,
          params.positions,
          params.qkv_stride,
          params.num_heads});
}

absl::Status CheckShapes(const QkvStoreParams& params, const KvShape& shape) {
  if (!(shape == KvShapeOf(*params.values))) {
    return absl::InvalidArgumentError("key and value views differ in shape");
  }
  if (shape.head_size % kColumns != 0 || shape.head_size > kMaxHeadSize) {
    return absl::InvalidArgumentError(absl::StrCat("head size ", shape.head_size,
                                                   " is not a multiple of ", kColumns, " up to ",
                                                   kMaxHeadSize));
  }
  if (params.rotary_size % 2 != 0 || params.rotary_first > shape.head_size ||
      params.rotary_size > shape.head_size - params.rotary_first) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary size ", params.rotary_size, " from column ", params.rotary_first,
                     " must be even and inside the head of ", shape.head_size));
  }
  const std::int64_t columns =
      (std::int64_t{params.num_heads} + 2 * std::int64_t{shape.num_heads}) * shape.head_size;
  if (params.qkv_stride < columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("qkv rows are ", params.qkv_stride, " apart, heads take ", columns));
  }
  if (params.token_rows == nullptr || params.positions == nullptr) {
    return absl::InvalidArgumentError("qkv store on a GPU needs token_rows and positions");
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status QkvStoreCuda(const CudaContext& context, const QkvStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  if (absl::Status status = CheckShapes(params, shape); !status.ok()) return status;
  const absl::Status other = absl::InvalidArgumentError(
      absl::StrCat("qkv of ", DTypeName(params.qkv.dtype()), " does not go into pages of ",
                   DTypeName(shape.dtype), " with ", shape.granularity,
                   " columns per scale; supported are f32 into f32, and bf16 into bf16, f16, "
                   "fp8_e4m3 and int8 with one "
                   "scale per head"));
  return std::visit(
      [&]<typename View>(const View& keys) -> absl::Status {
        using E = typename View::Element;
        if (View::kQuantized && shape.granularity != shape.head_size) return other;
        if constexpr (std::is_same_v<E, float>) {
          if (params.qkv.is_f32()) return LaunchQkvStore<float, E>(context, params, keys);
        } else {
          if (params.qkv.dtype() == DType::kBF16) {
            return LaunchQkvStore<BF16, E>(context, params, keys);
          }
        }
        return other;
      },
      *params.keys);
}

}  // namespace internal
}  // namespace quire::kernels
