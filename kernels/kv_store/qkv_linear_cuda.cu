// The product for q, k and v with what comes before attention, in one launch, while rows are few.
//
// The product is a tile of Linear (linear_tile.cuh), its sums in the order of that. The block that
// stores a tile of 128 features has whole heads of every row, rounded to bf16 as they would be on
// their way through memory, and goes on with them as QkvStore does: a warp a head (qkv_head.cuh).
// So there is no wait beyond that for the tile's own sub-ranges of K. Attention reads the pages in
// the next launch, never through TMA what its own kernel wrote.
//
// Time behind the product: a barrier and a head's round through L1, 1 us, a row of 128 columns each
// for the 8 warps.

#include <cstdint>
#include <variant>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/qkv_head.cuh"
#include "kernels/kv_store/qkv_linear.h"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

using linear_tile::kThreads;
using linear_tile::kWarps;
using linear_tile::LinearArgs;

constexpr WeightFormat kFormat = WeightFormat::kPlain;
constexpr std::uint32_t kRows = internal::kMaxQkvRows;
using StoreArgs = kv_head::QkvStoreArgs<BF16, BF16>;

struct QkvLinearArgs {
  LinearArgs product;
  StoreArgs store;
};

__global__ void __launch_bounds__(kThreads, 2)
    QkvLinearKernel(const __grid_constant__ QkvLinearArgs args) {
  cuda::DependencyLaunch();
  const linear_tile::Work work = linear_tile::WorkOf<kRows>(args.product);
  if (!linear_tile::Multiply<kFormat, kRows, false>(args.product, work, linear_tile::SameRow())) {
    return;
  }
  cuda::SyncBlock();
  const std::uint32_t heads = cuda::kLinearTileN / args.store.keys.head_size();
  const std::uint32_t first = work.feature_tile * heads;
  for (std::uint32_t i = cuda::Warp(); i < args.product.num_rows * heads; i += kWarps) {
    kv_head::StoreQkvHead<BF16, BF16>(args.store, i / heads, first + i % heads);
  }
}

}  // namespace

namespace internal {

bool StoresAtOnce(const QkvLinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const QkvStoreParams& store = params.store;
  return store.num_rows > 0 && store.num_rows <= kMaxQkvRows && weight.format() == kFormat &&
         OnTensorCores(weight, params.x.dtype()) && weight.library_plans() == nullptr &&
         params.x_stride >= std::int64_t{weight.k()} &&
         store.qkv_stride >= std::int64_t{weight.n()} && store.qkv.dtype() == DType::kBF16 &&
         std::holds_alternative<KvView<BF16>>(*store.keys) &&
         cuda::kLinearTileN % KvShapeOf(*store.keys).head_size == 0;
}

absl::Status QkvLinearCuda(const CudaContext& context, const QkvLinearParams& params) {
  const QkvStoreParams& store = params.store;
  QUIRE_RETURN_IF_ERROR(CheckQkvStore(store));
  QkvLinearArgs args{
      .product = {},
      .store = kv_head::QkvArgsOf<BF16, BF16>(store, std::get<KvView<BF16>>(*store.keys),
                                              std::get<KvView<BF16>>(*store.values))};
  QUIRE_ASSIGN_OR_RETURN(
      args.product, linear_tile::ArgsOf(*params.weight, params.x, params.x_stride, store.num_rows));
  UseWorkspace(context.linear_workspace, &args.product);
  args.product.bias = params.bias;
  args.product.y = store.qkv.data();
  args.product.y_stride = store.qkv_stride;
  args.product.y_is_bf16 = true;
  args.product.grid_splits = cuda::LinearReductionOf(args.product.n, args.product.k).splits;
  return cuda::Launch(context, "qkv_linear", QkvLinearKernel,
                      {.blocks_x = cuda::LinearTilesN(args.product.n) * args.product.grid_splits,
                       .threads = kThreads,
                       .shared_bytes = linear_tile::Shape<kFormat, kRows>::kSharedBytes,
                       .programmatic = true},
                      args);
}

}  // namespace internal
}  // namespace quire::kernels
