#pragma once

// What a launch becomes: an operation on a stream, or a node of the graph that the stream captures.

#include <driver_types.h>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Checks the shape as the runtime does and enqueues.
cudaError_t EnqueueKernel(cudaStream_t stream, KernelLaunch launch);

// How many blocks of so many threads and bytes of dynamic shared memory a multiprocessor has room
// for, at least one; registers are not known here. cudaErrorInvalidValue for more than a block may
// have.
cudaError_t MaxBlocksPerSm(std::uint32_t threads, std::uint32_t shared_bytes,
                           std::uint32_t* blocks);

}  // namespace quire::cuda_emulator
