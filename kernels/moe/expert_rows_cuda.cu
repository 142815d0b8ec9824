// Sorts rows by expert and adds the results of the experts to the rows. All kernels except the sort
// are bound by memory. Their grid is rows by blocks of columns.

#include <algorithm>
#include <cstdint>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/moe/expert_rows.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;

// Shared memory of the sort.
struct SortShared {
  std::uint32_t* starts;   // [num_experts + 1]
  std::uint32_t* next;     // [num_experts] place of this block's next choice of the expert
  std::uint32_t* turn;     // [kThreads] experts of the choices that are placed in one iteration
  std::uint32_t* scratch;  // [kWarps]
};
constexpr std::uint32_t SortSharedBytes(std::uint32_t num_experts) {
  return sizeof(std::uint32_t) * (2 * num_experts + 1 + kThreads + kWarps);
}

// Counts choices [begin, end) by expert. A thread loads several choices before it counts them.
__device__ __forceinline__ void CountChoices(const std::uint32_t* experts, std::uint32_t begin,
                                             std::uint32_t end, std::uint32_t* counts) {
  constexpr std::uint32_t kAtOnce = 8;
  for (std::uint32_t first = begin + cuda::ThreadIndex(); first < end;
       first += kAtOnce * kThreads) {
    std::uint32_t own[kAtOnce];
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = first + j * kThreads;
      own[j] = i < end ? experts[i] : 0;
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      if (first + j * kThreads < end) cuda::AtomicAdd(&counts[own[j]], 1u);
    }
  }
}

// A stable counting sort. Each block places `choices_per_block` choices. It counts all choices
// itself instead of waiting for the counts of the other blocks. The counts of all choices give the
// first place of each expert. The counts of the preceding blocks' choices give the block's first
// place within the expert.
__global__ void __launch_bounds__(kThreads)
    SortByExpertKernel(const SortByExpertParams params, std::uint32_t choices_per_block) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t thread = cuda::ThreadIndex();
  const std::uint32_t num_experts = params.num_experts;
  const std::uint32_t count = params.num_rows * params.top_k;
  const std::uint32_t begin = cuda::BlockX() * choices_per_block;
  const std::uint32_t end = count - begin < choices_per_block ? count : begin + choices_per_block;
  SortShared shared;
  shared.starts = reinterpret_cast<std::uint32_t*>(cuda::SharedMemory16());
  shared.next = shared.starts + num_experts + 1;
  shared.turn = shared.next + num_experts;
  shared.scratch = shared.turn + kThreads;
  for (std::uint32_t e = thread; e < num_experts; e += kThreads) {
    shared.starts[e] = 0;
    shared.next[e] = 0;
  }
  cuda::SyncBlock();
  CountChoices(params.experts, 0, begin, shared.next);
  CountChoices(params.experts, begin, count, shared.starts);
  cuda::SyncBlock();
  for (std::uint32_t e = thread; e < num_experts; e += kThreads) shared.starts[e] += shared.next[e];
  cuda::SyncBlock();
  cuda::ScanCounts<kThreads>(shared.starts, num_experts, shared.scratch);
  for (std::uint32_t e = thread; e < num_experts; e += kThreads) shared.next[e] += shared.starts[e];
  if (cuda::BlockX() == 0) {
    for (std::uint32_t e = thread; e <= num_experts; e += kThreads) {
      params.offsets[e] = shared.starts[e];
    }
  }
  for (std::uint32_t first = begin; first < end; first += kThreads) {
    const std::uint32_t i = first + thread;
    const std::uint32_t expert = i < end ? params.experts[i] : num_experts;
    shared.turn[thread] = expert;
    cuda::SyncBlock();
    if (i < end) {
      std::uint32_t place = shared.next[expert];
      for (std::uint32_t j = 0; j < thread; ++j) place += shared.turn[j] == expert ? 1 : 0;
      params.rows[place] = i / params.top_k;
      params.row_weights[place] = params.weights[i];
      if (params.places != nullptr) params.places[i] = place;
    }
    cuda::SyncBlock();
    if (i < end) cuda::AtomicAdd(&shared.next[expert], 1u);
  }
}

// GatherRowsParams as kernel arguments.
struct RowsToGather {
  const void* x;
  const std::uint32_t* rows;
  void* y;
  const float* weights;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t columns;
  bool is_f32;  // otherwise bf16
};

__global__ void __launch_bounds__(kThreads) GatherRowsKernel(const RowsToGather params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (i >= params.columns) return;
  const std::int64_t row = cuda::BlockX();
  const std::int64_t from = params.rows == nullptr ? row : std::int64_t{params.rows[row]};
  const float weight = params.weights == nullptr ? 1.0f : params.weights[row];
  const std::int64_t source = from * params.x_stride + i;
  const std::int64_t target = row * params.y_stride + i;
  if (params.is_f32) {
    static_cast<float*>(params.y)[target] =
        cuda::Mul(weight, static_cast<const float*>(params.x)[source]);
  } else {
    static_cast<BF16*>(params.y)[target] =
        BF16::FromFloat(cuda::Mul(weight, static_cast<const BF16*>(params.x)[source].ToFloat()));
  }
}

__global__ void __launch_bounds__(kThreads)
    AddWeightedRowsKernel(const AddWeightedRowsParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (i >= params.columns) return;
  const std::int64_t row = cuda::BlockX();
  const std::int64_t to = params.rows == nullptr ? row : std::int64_t{params.rows[row]};
  float* const y = params.y + to * params.y_stride + i;
  *y = cuda::Add(*y, cuda::Mul(params.weights[row], params.x[row * params.x_stride + i]));
}

// Each thread adds the choices of a row in ascending order of places. A row has few choices, so
// each step scans all of them for the next place.
__global__ void __launch_bounds__(kThreads) SumChosenRowsKernel(const SumChosenRowsParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (i >= params.columns) return;
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t* const places = params.places + row * params.top_k;
  const float* const weights =
      params.weights == nullptr ? nullptr : params.weights + row * params.top_k;
  float sum = 0;
  std::uint32_t least = 0;  // lower bound of the next place
  for (std::uint32_t step = 0; step < params.top_k; ++step) {
    std::uint32_t place = 0xffffffffu;
    float weight = 0;
    for (std::uint32_t j = 0; j < params.top_k; ++j) {
      const std::uint32_t candidate = places[j];
      if (candidate < least || candidate >= place) continue;
      place = candidate;
      weight = weights == nullptr ? 1.0f : weights[j];
    }
    sum = cuda::Add(sum, cuda::Mul(weight, params.x[place * params.x_stride + i]));
    least = place + 1;
  }
  const std::int64_t at = row * params.y_stride + i;
  if (params.addend != nullptr) sum = cuda::Add(sum, params.addend[at]);
  float* const y = params.y + at;
  *y = params.add ? cuda::Add(*y, sum) : sum;
}

__global__ void __launch_bounds__(kThreads) SigmoidKernel(float* x, std::uint32_t count) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockX() * kThreads + cuda::ThreadIndex();
  if (i < count) x[i] = cuda::Div(1.0f, cuda::Add(1.0f, ExactExp(-x[i])));
}

cuda::LaunchShape ShapeOf(std::uint32_t num_rows, std::uint32_t columns) {
  return {.blocks_x = num_rows,
          .blocks_y = columns / kThreads + (columns % kThreads != 0),
          .threads = kThreads,
          .programmatic = true};
}

}  // namespace

namespace internal {

absl::Status SortByExpertCuda(const CudaContext& context, const SortByExpertParams& params) {
  const std::uint32_t turns = (params.num_rows * params.top_k + kThreads - 1) / kThreads;
  const std::uint32_t most = std::clamp(turns, 1u, context.num_sms);
  const std::uint32_t turns_per_block = (turns + most - 1) / most;
  return cuda::Launch(context, "sort_by_expert", SortByExpertKernel,
                      {.blocks_x = turns == 0 ? 1 : (turns + turns_per_block - 1) / turns_per_block,
                       .threads = kThreads,
                       .shared_bytes = SortSharedBytes(params.num_experts),
                       .programmatic = true},
                      params, turns_per_block * kThreads);
}

absl::Status GatherRowsCuda(const CudaContext& context, const GatherRowsParams& params) {
  return cuda::Launch(context, "gather_rows", GatherRowsKernel,
                      ShapeOf(params.num_rows, params.columns),
                      RowsToGather{.x = params.x.data(),
                                   .rows = params.rows,
                                   .y = params.y.data(),
                                   .weights = params.weights,
                                   .x_stride = params.x_stride,
                                   .y_stride = params.y_stride,
                                   .columns = params.columns,
                                   .is_f32 = params.x.is_f32()});
}

absl::Status AddWeightedRowsCuda(const CudaContext& context, const AddWeightedRowsParams& params) {
  return cuda::Launch(context, "add_weighted_rows", AddWeightedRowsKernel,
                      ShapeOf(params.num_rows, params.columns), params);
}

absl::Status SumChosenRowsCuda(const CudaContext& context, const SumChosenRowsParams& params) {
  return cuda::Launch(context, "sum_chosen_rows", SumChosenRowsKernel,
                      ShapeOf(params.num_rows, params.columns), params);
}

absl::Status SigmoidCuda(const CudaContext& context, float* x, std::uint32_t count) {
  return cuda::Launch(
      context, "sigmoid", SigmoidKernel,
      {.blocks_x = (count + kThreads - 1) / kThreads, .threads = kThreads, .programmatic = true}, x,
      count);
}

}  // namespace internal
}  // namespace quire::kernels
