// Sorts rows by expert and adds the results of the experts to the rows. One warp per expert finds
// the expert's rows by scanning all choices in order. The other kernels are bound by memory. Their
// grid is rows by blocks of columns.

#include <cstdint>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/moe/expert_rows.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;

// The warp after the last expert writes the end offset.
__global__ void __launch_bounds__(kThreads) SortByExpertKernel(const SortByExpertParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t expert = cuda::BlockX() * kWarps + cuda::Warp();
  if (expert > params.num_experts) return;
  const std::uint32_t count = params.num_rows * params.top_k;
  const std::uint32_t lane = cuda::Lane();
  std::uint32_t at = 0;
  for (std::uint32_t first = 0; first < count; first += cuda::kWarpSize) {
    const std::uint32_t i = first + lane;
    at += cuda::CountBits(cuda::Ballot(i < count && params.experts[i] < expert));
  }
  if (lane == 0) params.offsets[expert] = at;
  if (expert == params.num_experts) return;
  for (std::uint32_t first = 0; first < count; first += cuda::kWarpSize) {
    const std::uint32_t i = first + lane;
    const bool mine = i < count && params.experts[i] == expert;
    const std::uint32_t found = cuda::Ballot(mine);
    if (mine) {
      const std::uint32_t to = at + cuda::CountBits(found & ((1u << lane) - 1));
      params.rows[to] = i / params.top_k;
      params.row_weights[to] = params.weights[i];
      if (params.places != nullptr) params.places[i] = to;
    }
    at += cuda::CountBits(found);
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

// A row has few choices, so each step scans all choices for the next place.
__global__ void __launch_bounds__(kThreads) SumChosenRowsKernel(const SumChosenRowsParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (i >= params.columns) return;
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t* const places = params.places + row * params.top_k;
  const float* const weights = params.weights + row * params.top_k;
  float sum = 0;
  std::uint32_t least = 0;  // lower bound of the next place
  for (std::uint32_t step = 0; step < params.top_k; ++step) {
    std::uint32_t place = 0xffffffffu;
    float weight = 0;
    for (std::uint32_t j = 0; j < params.top_k; ++j) {
      const std::uint32_t candidate = places[j];
      if (candidate < least || candidate >= place) continue;
      place = candidate;
      weight = weights[j];
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
  return cuda::Launch(
      context, "sort_by_expert", SortByExpertKernel,
      {.blocks_x = params.num_experts / kWarps + 1, .threads = kThreads, .programmatic = true},
      params);
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
