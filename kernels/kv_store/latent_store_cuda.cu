// Rope and page writes of MLA. A warp processes either the rope columns of one query head or one
// cached row (kv_head.cuh). qkv_store_cuda.cu gives the reason for a separate launch. The kernel is
// bound by memory: it reads and writes the rope columns and the cached rows.

#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_store/kv_head.cuh"
#include "kernels/kv_store/latent_store.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kRowPieces = 5;
using kv_head::kColumns;
static_assert(kMaxLatentColumns <= kv_head::kMaxHeadSize<kRowPieces>);
static_assert(kMaxLatentRope <= kv_head::kMaxHeadSize<1>);

template <typename T, typename E>
struct LatentStoreArgs {
  KvView<E> rows;
  const T* heads;
  const T* latents;
  T* queries;
  // Rotation of the rope columns, which are treated as a separate head. Without cosines they are
  // copied unchanged.
  kv_head::Rotation rope;
  const std::int32_t* token_rows;
  const std::int32_t* positions;
  std::uint32_t num_heads;
  std::uint32_t nope_size;
};

template <typename T, typename E>
__device__ __forceinline__ void RotateQuery(const LatentStoreArgs<T, E>& args, std::int64_t row,
                                            std::uint32_t head) {
  const std::uint32_t rope = args.rope.size;
  const std::uint32_t columns = args.rows.head_size();
  const std::int64_t index = row * args.num_heads + head;
  kv_head::HeadValues<1> values;
  kv_head::ReadHead<1>(args.rope, args.heads + index * (args.nope_size + rope) + args.nope_size,
                       rope, row, args.rope.cosines != nullptr, values);
  const std::uint32_t d = kv_head::FirstColumn(0);
  if (d >= rope) return;
  Vec<T, kColumns> out;
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) out.lane[c] = FromFloat<T>(values[0][c]);
  cache::StoreVector<kColumns>(args.queries + index * columns + (columns - rope) + d, out);
}

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads)
    LatentStoreKernel(const __grid_constant__ LatentStoreArgs<T, E> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t head = cuda::BlockY() * kWarps + cuda::Warp();
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0 || head > args.num_heads) return;
  if (head < args.num_heads) {
    RotateQuery(args, row, head);
    return;
  }
  const std::uint32_t columns = args.rows.head_size();
  kv_head::Rotation rotation = args.rope;
  rotation.first = columns - rotation.size;
  kv_head::HeadValues<kRowPieces> values;
  kv_head::ReadHead<kRowPieces>(rotation, args.latents + row * columns, columns, row,
                                rotation.cosines != nullptr, values);
  kv_head::StoreHead<kRowPieces, E>(
      args.rows,
      {static_cast<std::uint32_t>(batch_row), 0, static_cast<std::uint32_t>(args.positions[row])},
      values);
}

template <typename T, typename E>
absl::Status LaunchLatentStore(const CudaContext& context, const LatentStoreParams& params,
                               const KvView<E>& rows) {
  return cuda::Launch(
      context, "latent_store", LatentStoreKernel<T, E>,
      {.blocks_x = params.num_rows,
       .blocks_y = (params.num_heads + 1 + kWarps - 1) / kWarps,
       .threads = kThreads,
       .programmatic = true},
      LatentStoreArgs<T, E>{rows,
                            params.heads.as<T>(),
                            params.latents.as<T>(),
                            params.queries.as<T>(),
                            {params.cosines, params.sines, params.rope_size, 0, params.style},
                            params.token_rows,
                            params.positions,
                            params.num_heads,
                            params.nope_size});
}

absl::Status CheckShapes(const LatentStoreParams& params, const KvShape& shape) {
  if (shape.head_size % kColumns != 0 || shape.head_size > kMaxLatentColumns ||
      params.rope_size % kColumns != 0 || params.rope_size > kMaxLatentRope ||
      params.nope_size % kColumns != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("MLA cache rows of ", shape.head_size, " columns with ", params.rope_size,
                     " rope columns, queries with ", params.nope_size,
                     " other columns: a GPU requires multiples of ", kColumns, ", at most ",
                     kMaxLatentColumns, " columns and ", kMaxLatentRope, " rope columns"));
  }
  if (params.token_rows == nullptr || params.positions == nullptr) {
    return absl::InvalidArgumentError("LatentStore on a GPU requires token_rows and positions");
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status LatentStoreCuda(const CudaContext& context, const LatentStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.rows);
  if (absl::Status status = CheckShapes(params, shape); !status.ok()) return status;
  const DType dtype = params.latents.dtype();
  const absl::Status other = absl::InvalidArgumentError(absl::StrCat(
      "latents of ", DTypeName(dtype), " with queries of ", DTypeName(params.heads.dtype()),
      " and ", DTypeName(params.queries.dtype()), " are not supported with pages of ",
      DTypeName(shape.dtype), " with ", shape.granularity,
      " columns per scale; supported are f32 into f32, and bf16 into bf16, fp8_e4m3 and int8 "
      "with one scale per row"));
  if (params.heads.dtype() != dtype || params.queries.dtype() != dtype) return other;
  return std::visit(
      [&]<typename View>(const View& rows) -> absl::Status {
        using E = typename View::Element;
        if (View::kQuantized && shape.granularity != shape.head_size) return other;
        if constexpr (std::is_same_v<E, float>) {
          if (dtype == DType::kF32) return LaunchLatentStore<float, E>(context, params, rows);
        } else if constexpr (!std::is_same_v<E, F16>) {
          if (dtype == DType::kBF16) return LaunchLatentStore<BF16, E>(context, params, rows);
        }
        return other;
      },
      *params.rows);
}

}  // namespace internal
}  // namespace quire::kernels
