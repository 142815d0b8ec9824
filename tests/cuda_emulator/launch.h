#pragma once

// Enqueues a kernel launch as an operation on a stream, or as a node of the graph that the stream
// captures.

#include <driver_types.h>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Checks the shape as the CUDA runtime does and enqueues the kernel.
cudaError_t EnqueueKernel(cudaStream_t stream, KernelLaunch launch);

}  // namespace quire::cuda_emulator
