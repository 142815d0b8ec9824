#pragma once

// The checked launch: the only way a kernel is started.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/stream.h"
#include "kernels/cuda/context.h"

namespace quire::kernels::cuda {

struct LaunchShape {
  std::uint32_t blocks_x = 1;  // no block at all: nothing is launched
  std::uint32_t blocks_y = 1;
  // Blocks of a cluster (sm90/cluster.cuh), of which blocks_x is a multiple. More than one: on
  // compute capability 9.0 only.
  std::uint32_t cluster_x = 1;
  std::uint32_t threads = 0;
  // Dynamic shared memory; a kernel that calls SharedMemory() adds kSharedAlignment here.
  std::uint32_t shared_bytes = 0;
  // The kernel may start before the one in front of it on the stream has ended; it calls
  // DependencyWait before it reads what that one wrote. Only on compute capability 9.0: later GPUs
  // run the PTX of 8.0, in which DependencyWait is empty.
  bool programmatic = false;
};

// cudaLaunchKernelEx for arguments of kBytes, the host's sizes of P. It is not inlined: cuda_gate
// finds the names of its instances in objects and compares kBytes with what the machine code takes,
// since nvcc lays out the classes of the two sides apart.
template <std::size_t... kBytes, typename... P>
[[gnu::noinline]] cudaError_t Enqueue(const cudaLaunchConfig_t& config, void (*kernel)(P...),
                                      const P&... args) {
  return cudaLaunchKernelEx(&config, kernel, args...);
}

inline constexpr std::uint32_t kDefaultSharedBytes = 48 * 1024;
// Lets `kernel` have the shape's dynamic shared memory.
template <typename... P>
cudaError_t AllowShared(void (*kernel)(P...), const LaunchShape& shape) {
  if (shape.shared_bytes <= kDefaultSharedBytes) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shape.shared_bytes));
}

// How many blocks of the shape a multiprocessor runs at a time: what their threads, registers and
// shared memory leave room for, at least one. Returns what CudaStatus makes of a refusal.
template <typename... P>
absl::StatusOr<std::uint32_t> BlocksAtOnce(const char* name, void (*kernel)(P...),
                                           const LaunchShape& shape) {
  cudaError_t error = AllowShared(kernel, shape);
  int blocks = 0;
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, static_cast<int>(shape.threads), shape.shared_bytes);
  }
  if (error != cudaSuccess) return CudaStatus(error, name);
  return blocks < 1 ? 1u : static_cast<std::uint32_t>(blocks);
}

// Enqueues kernel(args...) on the context's stream. `name` is for messages. Returns what
// CudaStatus makes of a refused launch; errors inside the kernel appear when the stream is waited
// for.
template <typename... P, typename... A>
absl::Status Launch(const CudaContext& context, const char* name, void (*kernel)(P...),
                    const LaunchShape& shape, A&&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return absl::OkStatus();
  if (const cudaError_t error = AllowShared(kernel, shape); error != cudaSuccess) {
    return CudaStatus(error, name);
  }
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
