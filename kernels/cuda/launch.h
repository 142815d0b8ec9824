#pragma once

// Launches kernels with error checks. Every kernel is launched through Launch.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/loaded_kernels.h"

namespace quire::kernels::cuda {

struct LaunchShape {
  std::uint32_t blocks_x = 1;  // 0: nothing is launched
  std::uint32_t blocks_y = 1;
  // Number of blocks per cluster (sm90/cluster.cuh). blocks_x must be a multiple of it. More than
  // one requires compute capability 9.0.
  std::uint32_t cluster_x = 1;
  std::uint32_t threads = 0;
  // Bytes of dynamic shared memory. A kernel that calls SharedMemory() needs kSharedAlignment bytes
  // more.
  std::uint32_t shared_bytes = 0;
  // If true, the kernel may start before the preceding kernel on the stream has ended. It must call
  // DependencyWait before it reads results of that kernel. This has an effect only on compute
  // capability 9.0, because later GPUs run the PTX of 8.0, in which DependencyWait is empty.
  bool programmatic = false;
};

// kBytes are the sizes of the arguments on the host. The function is not inlined, so that
// tools/checks/cuda_gate.py finds its instances in object files. The script compares kBytes with
// the machine code, because host and device compilers lay out classes separately.
template <std::size_t... kBytes, typename... P>
[[gnu::noinline]] cudaError_t Enqueue(const cudaLaunchConfig_t& config, void (*kernel)(P...),
                                      const P&... args) {
  return cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename... P>
absl::StatusOr<std::uint32_t> MaxBlocksPerSm(const CudaContext& context, const char* name,
                                             void (*kernel)(P...), const LaunchShape& shape) {
  return context.kernels->MaxBlocksPerSm(name, reinterpret_cast<const void*>(kernel), shape.threads,
                                         shape.shared_bytes);
}

// Loads `kernel`. Then enqueues kernel(args...) on the context's stream, unless
// LoadedKernels::loads_only() is true. `name` is used in messages. If the launch fails, returns its
// CudaStatus. Errors inside the kernel are reported when the stream is synchronized.
template <typename... P, typename... A>
absl::Status Launch(const CudaContext& context, const char* name, void (*kernel)(P...),
                    const LaunchShape& shape, A&&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(
      context.kernels->Load(name, reinterpret_cast<const void*>(kernel), shape.shared_bytes));
  if (context.kernels->loads_only()) return absl::OkStatus();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks_x, shape.blocks_y);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = context.stream->cuda();
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.programmatic && context.compute_capability == 90) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster_x > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {.x = shape.cluster_x, .y = 1, .z = 1};
  }
  return CudaStatus(Enqueue<sizeof(P)...>(config, kernel, P(static_cast<A&&>(args))...), name);
}

}  // namespace quire::kernels::cuda
