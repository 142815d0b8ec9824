// Small ops over f32 rows. All but SumRows are bound by memory. Their grid is rows by blocks of
// columns, with one element per thread. SumRows has one thread per column, which adds the rows in
// order. Mean pooling therefore uses few blocks, which is acceptable because only embedding
// requests need it.

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/backend/exact_gate.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/elementwise/multiply.h"
#include "kernels/elementwise/residual.h"
#include "kernels/elementwise/softcap.h"
#include "kernels/elementwise/sum_rows.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr float kLargest = std::numeric_limits<float>::max();

// Returns the column of this thread, which may be beyond the row.
__device__ __forceinline__ std::uint32_t Column() {
  return cuda::BlockY() * kThreads + cuda::ThreadIndex();
}

cuda::LaunchShape ShapeOf(std::uint32_t num_rows, std::uint32_t columns) {
  return {.blocks_x = num_rows,
          .blocks_y = columns / kThreads + (columns % kThreads != 0),
          .threads = kThreads,
          .programmatic = true};
}

__global__ void __launch_bounds__(kThreads) ResidualAddKernel(const ResidualAddParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t i = Column();
  if (i >= params.columns) return;
  float* const x = params.x + row * params.x_stride + i;
  const float branch = params.branch[row * params.branch_stride + i];
  const float output_scale = params.stored_scale == nullptr
                                 ? params.output_scale
                                 : cuda::Mul(params.output_scale, *params.stored_scale);
  *x = cuda::Mul(cuda::Add(*x, cuda::Mul(params.scale, branch)), output_scale);
}

__global__ void __launch_bounds__(kThreads) SoftcapKernel(const SoftcapParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t i = Column();
  if (i >= params.columns) return;
  float* const x = params.x + row * params.x_stride + i;
  const float scaled = cuda::Mul(*x, params.scale);
  const bool is_capped = params.cap > 0 && !(fabsf(scaled) > kLargest);
  *x = is_capped ? cuda::Mul(params.cap, ExactTanh(cuda::Div(scaled, params.cap))) : scaled;
}

__global__ void __launch_bounds__(kThreads) RoundRowsKernel(const RoundRowsParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t i = Column();
  if (i >= params.columns) return;
  params.y[row * params.y_stride + i] = BF16::FromFloat(params.x[row * params.x_stride + i]);
}

__global__ void __launch_bounds__(kThreads) MultiplyKernel(const MultiplyParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::uint32_t i = Column();
  if (i >= params.columns) return;
  float* const x = params.x + row * params.x_stride + i;
  *x = cuda::Mul(*x, params.gate[row * params.gate_stride + i]);
}

// SumRowsParams as kernel arguments.
struct RowsToSum {
  const void* x;  // [num_rows, columns]
  float* sum;
  std::uint32_t num_rows;
  std::uint32_t columns;
  bool begins;
  bool is_f32;  // otherwise bf16
};

__global__ void __launch_bounds__(kThreads) SumRowsKernel(const RowsToSum params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = Column();
  if (i >= params.columns) return;
  float sum = params.begins ? 0.0f : params.sum[i];
  for (std::uint32_t row = 0; row < params.num_rows; ++row) {
    const std::int64_t at = std::int64_t{row} * params.columns + i;
    const float value = params.is_f32 ? static_cast<const float*>(params.x)[at]
                                      : static_cast<const BF16*>(params.x)[at].ToFloat();
    sum = cuda::Add(sum, value);
  }
  params.sum[i] = sum;
}

}  // namespace

namespace internal {

absl::Status ResidualAddCuda(const CudaContext& context, const ResidualAddParams& params) {
  return cuda::Launch(context, "residual_add", ResidualAddKernel,
                      ShapeOf(params.num_rows, params.columns), params);
}

absl::Status SoftcapCuda(const CudaContext& context, const SoftcapParams& params) {
  return cuda::Launch(context, "softcap", SoftcapKernel, ShapeOf(params.num_rows, params.columns),
                      params);
}

absl::Status SumRowsCuda(const CudaContext& context, const SumRowsParams& params) {
  return cuda::Launch(context, "sum_rows", SumRowsKernel, ShapeOf(1, params.columns),
                      RowsToSum{.x = params.x.data(),
                                .sum = params.sum,
                                .num_rows = params.num_rows,
                                .columns = params.columns,
                                .begins = params.begins,
                                .is_f32 = params.x.is_f32()});
}

absl::Status RoundRowsCuda(const CudaContext& context, const RoundRowsParams& params) {
  return cuda::Launch(context, "round_rows", RoundRowsKernel,
                      ShapeOf(params.num_rows, params.columns), params);
}

absl::Status MultiplyCuda(const CudaContext& context, const MultiplyParams& params) {
  return cuda::Launch(context, "multiply", MultiplyKernel, ShapeOf(params.num_rows, params.columns),
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
