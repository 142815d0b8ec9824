#pragma once

// Converts a launch to an operation on a stream, or to a node of the graph that the stream
// captures.

#include <driver_types.h>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Checks the shape like the runtime and enqueues the launch.
cudaError_t EnqueueKernel(cudaStream_t stream, KernelLaunch launch);

// Returns the number of blocks of this many threads and bytes of dynamic shared memory that a
// multiprocessor has room for, at least one. Registers are not considered. Returns
// cudaErrorInvalidValue for more than a block may have.
cudaError_t BlocksAtOnce(std::uint32_t threads, std::uint32_t shared_bytes, std::uint32_t* blocks);

}  // namespace quire::cuda_emulator
