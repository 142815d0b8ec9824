// The kernels and launches of Linear and GroupedLinear on tensor cores. linear_tile.cuh has the
// computation of a block.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/qkv_head.cuh"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_groups.cuh"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/linear_tile.cuh"

namespace quire::kernels {
namespace {

using cuda::HasFewGroupRows;
using cuda::kFewGroupRows;
using last_block::ArrivesLast;
using linear_tile::ArgsOf;
using linear_tile::kHalfTile;
using linear_tile::kThreads;
using linear_tile::kWarps;
using linear_tile::LinearArgs;
using linear_tile::Multiply;
using linear_tile::SameRow;
using linear_tile::SetGate;
using linear_tile::Shape;
using linear_tile::UseWorkspace;
using linear_tile::Work;
using linear_tile::WorkOf;

// Maximum number of rows of launches that store heads or add chosen rows after the product.
constexpr std::uint32_t kFewRows = 8;
static_assert(internal::kMaxStoredRows <= kFewRows);
// A stored head is at most as wide as one product tile, so two pieces suffice.
constexpr std::uint32_t kStoredPieces = 2;
static_assert(kv_head::kMaxHeadSize<kStoredPieces> >= cuda::kLinearTileN);

// Arguments of the QKV store that runs after a product in the same launch, for all rows of y. They
// are not a member of LinearArgs, because StoreHeads uses their address and the main loop would
// then read LinearArgs from memory.
struct FusedStoreArgs {
  kv_head::QkvStoreArgs<BF16, BF16> store;  // no store if store.qkv is null
  std::uint32_t num_rows;
  std::uint32_t grid_splits;
};

// Stores the heads of a tile, one warp per head. The block that stored the tile calls this
// function. This block has whole heads of every row, rounded to bf16 as in a separate launch.
// Attention reads the pages in the next launch, so TMA never reads data that the same kernel wrote.
// Not inlined, because the main loop for quantized weights would otherwise issue 10 % more
// instructions.
__attribute__((noinline)) __device__ void StoreHeads(const FusedStoreArgs& next) {
  cuda::SyncBlock();
  const std::uint32_t heads = cuda::kLinearTileN / next.store.keys.head_size();
  const std::uint32_t first = cuda::BlockX() / next.grid_splits * heads;
  for (std::uint32_t i = cuda::Warp(); i < next.num_rows * heads; i += kWarps) {
    kv_head::StoreQkvHead<kStoredPieces>(next.store, i / heads, first + i % heads);
  }
}

template <WeightFormat kFormat, std::uint32_t kTokens, bool kPromote>
__global__ void __launch_bounds__(kThreads, kPromote ? 1 : 2)
    LinearKernel(const __grid_constant__ LinearArgs args,
                 const __grid_constant__ FusedStoreArgs next) {
  cuda::DependencyLaunch();
  const bool stores = Multiply<kFormat, kTokens, kPromote>(args, WorkOf<kTokens>(args), SameRow());
  if constexpr (kTokens == kFewRows) {
    if (stores && next.store.qkv != nullptr) StoreHeads(next);
  }
}

struct GroupedArgs {
  LinearArgs linear;  // with the matrix of group 0 and all rows
  cuda::RowGroups groups;
};

// Arguments of the ChosenSum that runs after a grouped product. They are not a member of
// GroupedArgs for the same reason as FusedStoreArgs.
struct ChosenArgs {
  ChosenSum sum;
  const float* x;  // null: no sum
  std::int64_t x_stride;
  std::uint32_t n;
  std::uint32_t* counters;
};

// Computes the chosen sums of the block's features. Every block with these features calls this
// function, but only the last one to finish computes the sums. This block first sorts the choices
// of each row by place. Then each thread adds four features of a row. Not inlined for the same
// reason as StoreHeads.
__attribute__((noinline)) __device__ void AddChosen(const ChosenArgs& args) {
  const ChosenSum& sum = args.sum;
  auto* const places = reinterpret_cast<std::uint32_t*>(cuda::SharedMemory());
  auto* const weights = reinterpret_cast<float*>(places + kMaxChosen);
  if (!ArrivesLast(args.counters + cuda::BlockX(), cuda::GridY(), places)) return;
  cuda::SyncBlock();
  const std::uint32_t thread = cuda::ThreadIndex();
  if (thread < sum.num_rows * sum.top_k) {
    const std::uint32_t first = thread / sum.top_k * sum.top_k;
    const std::uint32_t own = sum.places[thread];
    std::uint32_t before = 0;
    for (std::uint32_t j = 0; j < sum.top_k; ++j) before += sum.places[first + j] < own ? 1 : 0;
    places[first + before] = own;
    weights[first + before] = sum.weights[thread];
  }
  cuda::SyncBlock();
  const std::uint32_t feature = cuda::BlockX() * cuda::kLinearTileN + thread % cuda::kWarpSize * 4;
  if (feature >= args.n) return;
  const float* const x = args.x + feature;
  for (std::uint32_t row = thread / cuda::kWarpSize; row < sum.num_rows;
       row += kThreads / cuda::kWarpSize) {
    float4 total{0.0f, 0.0f, 0.0f, 0.0f};
    const auto add = [&total](float4 v) {
      total = {cuda::Add(total.x, v.x), cuda::Add(total.y, v.y), cuda::Add(total.z, v.z),
               cuda::Add(total.w, v.w)};
    };
    for (std::uint32_t i = row * sum.top_k; i < (row + 1) * sum.top_k; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(x + places[i] * args.x_stride);
      const float weight = weights[i];
      add({cuda::Mul(weight, v.x), cuda::Mul(weight, v.y), cuda::Mul(weight, v.z),
           cuda::Mul(weight, v.w)});
    }
    const std::int64_t at = row * sum.y_stride + feature;
    if (sum.addend != nullptr) add(*reinterpret_cast<const float4*>(sum.addend + at));
    auto* const y = reinterpret_cast<float4*>(sum.y + at);
    if (sum.add) add(*y);
    *y = total;
  }
}

// True if blocks of this shape compute the sums of chosen rows.
template <std::uint32_t kTokens>
inline constexpr bool kAddsChosen = kTokens == kFewGroupRows;

// Linear for the rows of each group. A block must wait for the previous kernel before it can find
// its matrix. It computes all sub-ranges of K, because the groups provide enough blocks.
template <WeightFormat kFormat, std::uint32_t kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedLinearKernel(const __grid_constant__ GroupedArgs args,
                        const __grid_constant__ ChosenArgs chosen) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const cuda::GroupTile tile =
      cuda::GroupTileOf<kTokens>(args.groups, args.linear.num_rows, cuda::BlockY());
  if (tile.group >= args.groups.count) {
    if constexpr (kAddsChosen<kTokens>) {
      if (chosen.x != nullptr) AddChosen(chosen);
    }
    return;
  }
  LinearArgs own = args.linear;
  own.w += tile.group * args.groups.data_distance;
  own.scales += tile.group * args.groups.scale_distance;
  if (own.zeros != nullptr) own.zeros += tile.group * args.groups.scale_distance;
  if (own.bias != nullptr) own.bias += tile.group * args.groups.bias_distance;
  own.num_rows = tile.end;
  Work work = WorkOf<kTokens>(own);
  work.m0 = tile.begin;
  // Rows from `end` on are not in the group, so they are not looked up.
  Multiply<kFormat, kTokens, true>(own, work, [&args, end = tile.end](std::uint32_t row) {
    return std::int64_t{row < end ? cuda::InputRow(args.groups, row) : 0};
  });
  if constexpr (kAddsChosen<kTokens>) {
    if (chosen.x != nullptr) AddChosen(chosen);
  }
}

template <WeightFormat kFormat, std::uint32_t kTokens, bool kPromote = false>
absl::Status LaunchTile(const CudaContext& context, LinearArgs args, FusedStoreArgs next = {}) {
  using S = Shape<kFormat, kTokens>;
  const cuda::LinearReduction tree = cuda::LinearReductionOf(args.n, args.k);
  args.tiles_per_split = tree.tiles_per_split;
  args.grid_splits = kTokens <= cuda::kLinearSmallRows ? tree.splits : 1;
  next.num_rows = args.num_rows;
  next.grid_splits = args.grid_splits;
  return cuda::Launch(context, "linear", LinearKernel<kFormat, kTokens, kPromote>,
                      {.blocks_x = cuda::LinearTilesN(args.n) * args.grid_splits,
                       .blocks_y = (args.num_rows + kTokens - 1) / kTokens,
                       .threads = kThreads,
                       .shared_bytes = S::kSharedBytes,
                       .programmatic = true},
                      args, next);
}

// Returns the number of rows whose partial sums fit in the workspace, a multiple of
// kLinearSmallRows.
std::uint32_t MaxSplitRows(std::uint32_t n, std::uint32_t splits) {
  return cuda::kLinearSmallRows * (cuda::kLinearMaxPartials / (cuda::LinearTilesN(n) * splits));
}

// Launches a product with unquantized weights. `args` are the kernel arguments of `params`.
absl::Status LaunchPlain(const CudaContext& context, const LinearParams& params,
                         const LinearArgs& args, const FusedStoreArgs& next) {
  constexpr WeightFormat kFormat = WeightFormat::kPlain;
  if (args.num_rows <= kFewRows) return LaunchTile<kFormat, kFewRows>(context, args, next);
  if (args.num_rows <= 16) return LaunchTile<kFormat, 16>(context, args);
  const std::uint32_t splits = cuda::LinearReductionOf(args.n, args.k).splits;
  if (args.num_rows <= cuda::kLinearSmallRows && (splits > 1 || !context.has_sm90a())) {
    return args.num_rows <= 32 ? LaunchTile<kFormat, 32>(context, args)
                               : LaunchTile<kFormat, 64>(context, args);
  }
  // Splits K among blocks if blocks that compute all of K would leave multiprocessors idle.
  const std::uint32_t whole_blocks = cuda::LinearTilesN(args.n) * ((args.num_rows + 127) / 128);
  if (splits > 1 && whole_blocks < context.num_sms &&
      args.num_rows <= MaxSplitRows(args.n, splits)) {
    return LaunchTile<kFormat, 64>(context, args);
  }
  if (context.has_sm90a()) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_launched, internal::LinearSm90Cuda(context, params));
    if (is_launched) return absl::OkStatus();
  }
  if (args.num_rows <= cuda::kLinearSmallRows) return LaunchTile<kFormat, 64>(context, args);
  if (splits == 1) return LaunchTile<kFormat, 128>(context, args);
  return LaunchTile<kFormat, 128, true>(context, args);
}

template <WeightFormat kFormat, std::uint32_t kTokens>
absl::Status LaunchGroups(const CudaContext& context, const GroupedArgs& args,
                          const ChosenArgs& chosen) {
  return cuda::Launch(
      context, "grouped_linear", GroupedLinearKernel<kFormat, kTokens>,
      {.blocks_x = cuda::LinearTilesN(args.linear.n),
       .blocks_y = cuda::MaxGroupTiles(args.linear.num_rows, args.groups.count, kTokens),
       .threads = kThreads,
       .shared_bytes = Shape<kFormat, kTokens>::kSharedBytes,
       .programmatic = true},
      args, chosen);
}

// Uses small tiles if groups have few rows.
template <WeightFormat kFormat>
absl::Status LaunchGrouped(const CudaContext& context, const GroupedArgs& args,
                           const ChosenArgs& chosen) {
  if (HasFewGroupRows(args.linear.num_rows, args.groups.count)) {
    return LaunchGroups<kFormat, kFewGroupRows>(context, args, chosen);
  }
  return LaunchGroups<kFormat, 64>(context, args, chosen);
}

// Launches the kernel repeatedly, each time with as many rows as fit in the workspace. This is
// efficient for few rows, where reading the weights dominates the time.
template <WeightFormat kFormat>
absl::Status LaunchQuantized(const CudaContext& context, LinearArgs args,
                             const FusedStoreArgs& next) {
  if (args.num_rows <= kFewRows) return LaunchTile<kFormat, kFewRows>(context, args, next);
  const std::uint32_t num_rows = args.num_rows;
  const std::uint32_t splits = cuda::LinearReductionOf(args.n, args.k).splits;
  const std::uint32_t step = splits == 1 ? num_rows : MaxSplitRows(args.n, splits);
  const std::int64_t y_bytes = args.y_stride * (args.y_is_bf16 ? 2 : 4);
  for (std::uint32_t row = 0; row < num_rows; row += step) {
    args.num_rows = std::min(num_rows - row, step);
    QUIRE_RETURN_IF_ERROR((LaunchTile<kFormat, 64>(context, args)));
    args.x += args.x_stride * step;
    args.y = static_cast<std::byte*>(args.y) + y_bytes * step;
    if (args.residual != nullptr) args.residual += args.residual_stride * step;
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status LinearTensorCoreCuda(const CudaContext& context, const LinearParams& params) {
  QUIRE_ASSIGN_OR_RETURN(const LinearArgs args, ArgsOf(context, params));
  FusedStoreArgs next = {};
  if (params.store != nullptr) {
    QUIRE_RETURN_IF_ERROR(CheckQkvStore(*params.store));
    next.store =
        kv_head::QkvArgsOf<BF16, BF16>(*params.store, std::get<KvView<BF16>>(*params.store->keys),
                                       std::get<KvView<BF16>>(*params.store->values));
  }
  switch (params.weight->format()) {
    case WeightFormat::kPlain:
      return LaunchPlain(context, params, args, next);
    case WeightFormat::kInt8:
      return LaunchQuantized<WeightFormat::kInt8>(context, args, next);
    case WeightFormat::kFp8E4M3:
      return LaunchQuantized<WeightFormat::kFp8E4M3>(context, args, next);
    case WeightFormat::kInt4:
      return LaunchQuantized<WeightFormat::kInt4>(context, args, next);
    case WeightFormat::kFp4E2M1:
      break;
  }
  return LaunchQuantized<WeightFormat::kFp4E2M1>(context, args, next);
}

absl::Status GroupedLinearTensorCoreCuda(const CudaContext& context,
                                         const GroupedLinearParams& params) {
  const PackedLinear& weight = *params.weights.first;
  GroupedArgs args{.linear = {}, .groups = cuda::RowGroupsOf(params)};
  QUIRE_ASSIGN_OR_RETURN(args.linear, ArgsOf(weight, params.x, params.x_stride, params.num_rows));
  UseWorkspace(context.linear_workspace, &args.linear);
  args.linear.bias = params.weights.bias;
  args.linear.y = params.y.data();
  args.linear.y_stride = params.y_stride;
  args.linear.y_is_bf16 = params.y.dtype() == DType::kBF16;
  SetGate(params.gate, &args.linear);
  ChosenArgs chosen{};
  if (params.sum) {
    chosen = {.sum = *params.sum,
              .x = params.y.f32(),
              .x_stride = params.y_stride,
              .n = weight.n(),
              .counters = args.linear.counters};
  }
  switch (weight.format()) {
    case WeightFormat::kPlain:
      return LaunchGrouped<WeightFormat::kPlain>(context, args, chosen);
    case WeightFormat::kInt8:
      return LaunchGrouped<WeightFormat::kInt8>(context, args, chosen);
    case WeightFormat::kFp8E4M3:
      return LaunchGrouped<WeightFormat::kFp8E4M3>(context, args, chosen);
    case WeightFormat::kInt4:
      return LaunchGrouped<WeightFormat::kInt4>(context, args, chosen);
    case WeightFormat::kFp4E2M1:
      break;
  }
  return LaunchGrouped<WeightFormat::kFp4E2M1>(context, args, chosen);
}

}  // namespace internal
}  // namespace quire::kernels
