// A warp computes one group of a row. A block computes a group of more than 1024 columns. Thread l
// of L threads processes columns l, l + L, ... and adds their squares in that order. Each warp then
// adds the sums of its lanes by a butterfly, and the sums of a block's warps are added in order.
// The second pass reads the group again, from the cache. GateOrder::kSigmoid has no norm, so only
// the second pass runs.
//
// The kernel is bound by memory. Bytes per element: 8 in and 4 out for f32, half of that for bf16.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/recurrent/recurrent_math.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kMaxWarpColumns = 1024;

struct GateNormArgs {
  const void* x;
  const void* gate;
  const float* weight;
  void* y;
  std::int64_t x_stride;
  std::int64_t gate_stride;
  std::int64_t y_stride;
  std::uint32_t groups;
  std::uint32_t columns;
  float epsilon;
  GateOrder order;
  bool has_group_weights;
  bool reads_bf16;   // x and gate are bf16, otherwise f32
  bool writes_bf16;  // y is bf16, otherwise f32
};

__device__ __forceinline__ float Load(const void* from, std::int64_t at, bool is_bf16) {
  return is_bf16 ? static_cast<const BF16*>(from)[at].ToFloat()
                 : static_cast<const float*>(from)[at];
}

__device__ __forceinline__ void Store(void* to, std::int64_t at, float value, bool is_bf16) {
  if (is_bf16) {
    static_cast<BF16*>(to)[at] = BF16::FromFloat(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

// Element offsets of a group of a row in each array.
struct Group {
  std::int64_t x;
  std::int64_t gate;
  std::int64_t weight;
  std::int64_t y;
};

// Returns the input of the norm at column i. For kSigmoid, which has no norm, returns x.
__device__ __forceinline__ float Value(const GateNormArgs& args, const Group& group,
                                       std::uint32_t i) {
  const float x = Load(args.x, group.x + i, args.reads_bf16);
  if (args.order != GateOrder::kSiluThenNorm) return x;
  return cuda::Mul(x, cuda::Silu(Load(args.gate, group.gate + i, args.reads_bf16)));
}

__device__ __forceinline__ float Result(const GateNormArgs& args, const Group& group,
                                        std::uint32_t i, float inverse) {
  float value = Value(args, group, i);
  if (args.order != GateOrder::kSigmoid) {
    value = cuda::Mul(cuda::Mul(value, inverse), args.weight[group.weight + i]);
  }
  if (args.order == GateOrder::kSiluThenNorm) return value;
  const float gate = Load(args.gate, group.gate + i, args.reads_bf16);
  return cuda::Mul(value,
                   args.order == GateOrder::kNormThenSilu ? cuda::Silu(gate) : cuda::Sigmoid(gate));
}

// Returns the sum over the block, with the same bits in every thread.
__device__ __forceinline__ float BlockSum(float sum) {
  auto* const sums = reinterpret_cast<float*>(cuda::SharedMemory16());
  const std::uint32_t warp = cuda::Warp();
  if (cuda::Lane() == 0) sums[warp] = sum;
  cuda::SyncBlock();
  float total = sums[0];
#pragma unroll
  for (std::uint32_t i = 1; i < kWarps; ++i) total = cuda::Add(total, sums[i]);
  return total;
}

__global__ void __launch_bounds__(kThreads) GateNormKernel(const GateNormArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const bool is_wide = args.columns > kMaxWarpColumns;
  const std::uint32_t g = is_wide ? cuda::BlockY() : cuda::BlockY() * kWarps + cuda::Warp();
  if (g >= args.groups) return;
  const std::int64_t m = cuda::BlockX();
  const std::int64_t at = std::int64_t{g} * args.columns;
  const Group group{.x = m * args.x_stride + at,
                    .gate = m * args.gate_stride + at,
                    .weight = args.has_group_weights ? at : 0,
                    .y = m * args.y_stride + at};
  const std::uint32_t first = is_wide ? cuda::ThreadIndex() : cuda::Lane();
  const std::uint32_t step = is_wide ? kThreads : cuda::kWarpSize;
  float inverse = 1.0f;
  if (args.order != GateOrder::kSigmoid) {
    float sum = 0.0f;
    for (std::uint32_t i = first; i < args.columns; i += step) {
      const float value = Value(args, group, i);
      sum = cuda::Fma(value, value, sum);
    }
    sum = cuda::WarpSum(sum);
    if (is_wide) sum = BlockSum(sum);
    const float mean = cuda::Div(sum, static_cast<float>(args.columns));
    inverse = cuda::Div(1.0f, cuda::Sqrt(cuda::Add(mean, args.epsilon)));
  }
  for (std::uint32_t i = first; i < args.columns; i += step) {
    Store(args.y, group.y + i, Result(args, group, i, inverse), args.writes_bf16);
  }
}

bool IsSupported(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

}  // namespace

namespace internal {

absl::Status GateNormCuda(const CudaContext& context, const GateNormParams& params) {
  const DType x = params.x.dtype(), gate = params.gate.dtype(), y = params.y.dtype();
  if (x != gate || !IsSupported(x) || !IsSupported(y)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gated norm of ", DTypeName(x), " with gate ", DTypeName(gate), " to ", DTypeName(y),
        ": a GPU supports f32 and bf16, and the gate must have the type of x"));
  }
  const bool is_wide = params.columns > kMaxWarpColumns;
  return cuda::Launch(context, "gate_norm", GateNormKernel,
                      {.blocks_x = params.num_rows,
                       .blocks_y = is_wide ? params.groups : (params.groups + kWarps - 1) / kWarps,
                       .threads = kThreads,
                       .shared_bytes = kWarps * sizeof(float),
                       .programmatic = true},
                      GateNormArgs{.x = params.x.data(),
                                   .gate = params.gate.data(),
                                   .weight = params.weight,
                                   .y = params.y.data(),
                                   .x_stride = params.x_stride,
                                   .gate_stride = params.gate_stride,
                                   .y_stride = params.y_stride,
                                   .groups = params.groups,
                                   .columns = params.columns,
                                   .epsilon = params.epsilon,
                                   .order = params.order,
                                   .has_group_weights = params.has_group_weights,
                                   .reads_bf16 = x == DType::kBF16,
                                   .writes_bf16 = y == DType::kBF16});
}

}  // namespace internal
}  // namespace quire::kernels
