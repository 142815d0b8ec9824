#pragma once

// Enqueues a kernel launch as an operation on a stream, or as a node of the graph that the stream
// captures.

#include <driver_types.h>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Checks the shape as the CUDA runtime does and enqueues the kernel.
cudaError_t EnqueueKernel(cudaStream_t stream, KernelLaunch launch);

// Sets *blocks to the number of resident blocks per multiprocessor, at least one, for this number
// of threads and bytes of dynamic shared memory. Registers are not considered. Returns
// cudaErrorInvalidValue if a block cannot be that large.
cudaError_t MaxBlocksPerSm(std::uint32_t threads, std::uint32_t shared_bytes,
                           std::uint32_t* blocks);

}  // namespace quire::cuda_emulator
