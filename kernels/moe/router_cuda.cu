// The router: one warp per row (router_choice.cuh).

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/moe/router.h"
#include "kernels/moe/router_choice.cuh"

namespace quire::kernels {
namespace {

using router_choice::ChooseExperts;
using router_choice::WarpFloats;

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kMaxShared = 48 * 1024;

__global__ void __launch_bounds__(kThreads) RouterKernel(const RouterParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t row = cuda::BlockX() * kWarps + cuda::Warp();
  if (row >= params.num_rows) return;
  ChooseExperts(params, row,
                reinterpret_cast<float*>(cuda::SharedMemory16()) +
                    cuda::Warp() * WarpFloats(params.num_experts, params.groups));
}

}  // namespace

namespace internal {

absl::Status RouterCuda(const CudaContext& context, const RouterParams& params) {
  const std::uint64_t bytes = std::uint64_t{kWarps} * sizeof(float) *
                              (2 * std::uint64_t{params.num_experts} + params.groups);
  if (bytes > kMaxShared) {
    return absl::InvalidArgumentError(
        absl::StrCat("router of ", params.num_experts, " experts needs ", bytes,
                     " bytes of shared memory, the limit is ", kMaxShared));
  }
  return cuda::Launch(context, "router", RouterKernel,
                      {.blocks_x = (params.num_rows + kWarps - 1) / kWarps,
                       .threads = kThreads,
                       .shared_bytes = static_cast<std::uint32_t>(bytes),
                       .programmatic = true},
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
