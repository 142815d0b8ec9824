// Angles of a step: one thread per (row, pair). A step has at most a few thousand rows of 64 pairs,
// so launch latency dominates. f64 is used only for the reduction of the angle.

#include <cstdint>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/rope/rope.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 128;

__global__ void __launch_bounds__(kThreads) RopeAnglesKernel(const RopeAnglesParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t i = cuda::BlockY() * kThreads + cuda::ThreadIndex();
  if (i >= params.num_pairs) return;
  const std::int64_t row = cuda::BlockX();
  const auto position = static_cast<float>(params.positions[row]);
  const CosSin turn = ExactCosSin(cuda::Mul(position, params.inv_freq[i]));
  const std::int64_t at = row * params.num_pairs + i;
  params.cosines[at] = cuda::Mul(turn.cos, params.attention_factor);
  params.sines[at] = cuda::Mul(turn.sin, params.attention_factor);
}

}  // namespace

namespace internal {

absl::Status RopeAnglesCuda(const CudaContext& context, const RopeAnglesParams& params) {
  return cuda::Launch(context, "rope_angles", RopeAnglesKernel,
                      {.blocks_x = params.num_rows,
                       .blocks_y = params.num_pairs / kThreads + (params.num_pairs % kThreads != 0),
                       .threads = kThreads,
                       .programmatic = true},
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
