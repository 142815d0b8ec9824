// Runs between the QKV product and attention: one warp per (token, head) (qkv_head.cuh).
//
// It is a separate launch from attention, because TMA reads would not see writes of the same
// kernel. It is bound by memory: it reads a token's QKV row and writes its q row and its page rows.

#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_store/qkv_head.cuh"
#include "kernels/kv_store/qkv_store.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kPieces = 4;
static_assert(kv_head::kMaxHeadSize<kPieces> == kMaxQkvColumns);
using kv_head::kColumns;

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads)
    QkvStoreKernel(const __grid_constant__ kv_head::QkvStoreArgs<T, E> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  kv_head::StoreQkvHead<kPieces>(args, cuda::BlockX(), cuda::BlockY() * kWarps + cuda::Warp());
}

template <typename T, typename E>
absl::Status LaunchQkvStore(const CudaContext& context, const QkvStoreParams& params,
                            const KvView<E>& keys) {
  const kv_head::QkvStoreArgs<T, E> args =
      kv_head::QkvArgsOf<T, E>(params, keys, std::get<KvView<E>>(*params.values));
  return cuda::Launch(context, "qkv_store", QkvStoreKernel<T, E>,
                      {.blocks_x = params.num_rows,
                       .blocks_y = (args.all_heads + kWarps - 1) / kWarps,
                       .threads = kThreads,
                       .programmatic = true},
                      args);
}

}  // namespace

namespace internal {

absl::Status CheckQkvStore(const QkvStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  if (!(shape == KvShapeOf(*params.values))) {
    return absl::InvalidArgumentError("key and value views have different shapes");
  }
  if (shape.head_size % kColumns != 0 || shape.head_size > kMaxQkvColumns) {
    return absl::InvalidArgumentError(absl::StrCat("head size ", shape.head_size,
                                                   " must be a multiple of ", kColumns,
                                                   " and at most ", kMaxQkvColumns));
  }
  if (params.rotary_size % 2 != 0 || params.rotary_first > shape.head_size ||
      params.rotary_size > shape.head_size - params.rotary_first) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary size ", params.rotary_size, " from column ", params.rotary_first,
                     " must be even and inside the head of ", shape.head_size));
  }
  const std::int64_t stored = params.queries_only ? 0 : 2 * std::int64_t{shape.num_heads};
  const std::int64_t columns = (params.num_heads + stored) * shape.head_size;
  if (params.qkv_stride < columns) {
    return absl::InvalidArgumentError(absl::StrCat("qkv_stride is ", params.qkv_stride,
                                                   ", must be at least the size of all heads, ",
                                                   columns));
  }
  if (params.token_rows == nullptr || params.positions == nullptr) {
    return absl::InvalidArgumentError("QkvStore on a GPU requires token_rows and positions");
  }
  return absl::OkStatus();
}

absl::Status QkvStoreCuda(const CudaContext& context, const QkvStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  if (absl::Status status = CheckQkvStore(params); !status.ok()) return status;
  const absl::Status other = absl::InvalidArgumentError(
      absl::StrCat("qkv of ", DTypeName(params.qkv.dtype()), " is not supported with pages of ",
                   DTypeName(shape.dtype), " with ", shape.granularity,
                   " columns per scale; supported are f32 into f32, and bf16 into bf16, fp8_e4m3 "
                   "and int8 with one scale per head"));
  return std::visit(
      [&]<typename View>(const View& keys) -> absl::Status {
        using E = typename View::Element;
        if (View::kQuantized && shape.granularity != shape.head_size) return other;
        if constexpr (std::is_same_v<E, float>) {
          if (params.qkv.is_f32()) return LaunchQkvStore<float, E>(context, params, keys);
        } else if constexpr (!std::is_same_v<E, F16>) {
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
