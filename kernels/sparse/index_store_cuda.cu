// Layer norm, rope and page writes of an indexer: one warp per query head, and one per index key.
// A warp keeps its columns in shared memory, because rope combines columns of different lanes.

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_store/kv_head.cuh"
#include "kernels/sparse/index_store.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
using kv_head::kColumns;
static_assert(kMaxGpuIndexSize == kv_head::kMaxHeadSize<1>);

template <typename E>
struct IndexStoreArgs {
  KvView<E> rows;
  float* queries;
  const float* keys;
  const float* norm_weight;
  const float* norm_bias;
  kv_head::Rotation rope;
  const std::int32_t* token_rows;
  const std::int32_t* positions;
  std::uint32_t num_heads;
  float epsilon;
};

__device__ __forceinline__ double WarpSum(double x) {
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    x += cuda::ShuffleXor(x, mask);
  }
  return x;
}

// Normalizes the columns of a key, four per lane.
template <typename E>
__device__ __forceinline__ void Normalize(const IndexStoreArgs<E>& args, std::uint32_t size,
                                          float* x) {
  const std::uint32_t d = kv_head::FirstColumn(0);
  const bool is_used = d < size;
  double sum = 0;
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) sum += is_used ? double{x[c]} : 0.0;
  const double mean = WarpSum(sum) / size;
  double squares = 0;
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    const double difference = is_used ? double{x[c]} - mean : 0.0;
    squares += difference * difference;
  }
  const double factor = 1 / sqrt(WarpSum(squares) / size + double{args.epsilon});
  if (!is_used) return;
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    const auto normed = static_cast<float>((double{x[c]} - mean) * factor);
    x[c] = cuda::Add(cuda::Mul(normed, args.norm_weight[d + c]), args.norm_bias[d + c]);
  }
}

template <typename E>
__global__ void __launch_bounds__(kThreads)
    IndexStoreKernel(const __grid_constant__ IndexStoreArgs<E> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t head = cuda::BlockY() * kWarps + cuda::Warp();
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0 || head > args.num_heads) return;
  const bool is_key = head == args.num_heads;
  const std::uint32_t size = args.rows.head_size();
  float* const query = args.queries + (row * args.num_heads + head) * size;
  const float* const from = is_key ? args.keys + row * size : query;
  float* const shared =
      reinterpret_cast<float*>(cuda::SharedMemory16()) + cuda::Warp() * kMaxGpuIndexSize;
  const std::uint32_t d = kv_head::FirstColumn(0);
  Vec<float, kColumns> x{};
  if (d < size) x = cache::LoadVector<kColumns>(from + d);
  if (is_key) Normalize(args, size, x.lane);
  if (d < size) cache::StoreVector<kColumns>(shared + d, x);
  cuda::SyncWarp();
  kv_head::HeadValues<1> rotated{};
  if (d < size) {
    const kv_head::NormedHead<float> columns{shared, nullptr, 1.0f};
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) {
      rotated[0][c] = kv_head::Rotated(args.rope, columns, row, d + c, x.lane[c]);
    }
  }
  if (is_key) {
    kv_head::StoreHead<1, E>(
        args.rows,
        {static_cast<std::uint32_t>(batch_row), 0, static_cast<std::uint32_t>(args.positions[row])},
        rotated);
    return;
  }
  if (d >= size) return;
#pragma unroll
  for (std::uint32_t c = 0; c < kColumns; ++c) x.lane[c] = rotated[0][c];
  cache::StoreVector<kColumns>(query + d, x);
}

absl::Status CheckShapes(const IndexStoreParams& params, const KvShape& shape) {
  if (shape.num_heads != 1 || shape.head_size % kColumns != 0 ||
      shape.head_size > kMaxGpuIndexSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("index rows have ", shape.num_heads, " heads of ", shape.head_size,
                     " columns: a GPU requires 1 head of a multiple of ", kColumns,
                     " columns, at most ", kMaxGpuIndexSize));
  }
  if (params.rope_size % 2 != 0 || params.rope_size > shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary size of index rows is ", params.rope_size,
                     ", it must be even and at most ", shape.head_size, ", the columns of a row"));
  }
  if (params.token_rows == nullptr || params.positions == nullptr) {
    return absl::InvalidArgumentError("IndexStore on a GPU requires token_rows and positions");
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status IndexStoreCuda(const CudaContext& context, const IndexStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.rows);
  QUIRE_RETURN_IF_ERROR(CheckShapes(params, shape));
  return std::visit(
      [&]<typename View>(const View& rows) -> absl::Status {
        using E = typename View::Element;
        if constexpr (std::is_same_v<E, float> || std::is_same_v<E, BF16>) {
          return cuda::Launch(
              context, "index_store", IndexStoreKernel<E>,
              {.blocks_x = params.num_rows,
               .blocks_y = (params.num_heads + 1 + kWarps - 1) / kWarps,
               .threads = kThreads,
               .shared_bytes = kWarps * kMaxGpuIndexSize * sizeof(float),
               .programmatic = true},
              IndexStoreArgs<E>{rows,
                                params.queries,
                                params.keys,
                                params.norm_weight,
                                params.norm_bias,
                                {params.cosines, params.sines, params.rope_size, 0, params.style},
                                params.token_rows,
                                params.positions,
                                params.num_heads,
                                params.epsilon});
        } else {
          return absl::InvalidArgumentError(absl::StrCat("index rows are ", DTypeName(shape.dtype),
                                                         ", they must be f32 or bf16"));
        }
      },
      *params.rows);
}

}  // namespace internal
}  // namespace quire::kernels
