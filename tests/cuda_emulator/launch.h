#pragma once

// What a launch becomes: an operation on a stream, or a node of the graph that the stream captures.

#include <driver_types.h>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Checks the shape as the runtime does and enqueues.
cudaError_t EnqueueKernel(cudaStream_t stream, KernelLaunch launch);

}  // namespace quire::cuda_emulator
