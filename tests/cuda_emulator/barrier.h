#pragma once

// mbarrier, after the PTX ISA: arrivals still to come, bytes still to come, and the parity of the
// phase, all in the 64 bits in shared memory, so that a kernel that overwrites or forgets to
// initialise one is caught.

#include <cstdint>

#include "tests/cuda_emulator/vector_clock.h"

namespace quire::cuda_emulator {

void InitBarrier(void* barrier, std::uint32_t arrivals);
// One arrival, after `bytes` were added to what this phase waits for.
void ArriveBarrier(void* barrier, std::uint32_t bytes);
// One arrival at the barrier at the same place in the block of this rank of the cluster.
void ArriveBarrierIn(std::uint32_t rank, void* barrier);
// Returns once the phase of this parity is complete.
void WaitBarrier(void* barrier, std::uint32_t parity);

// An arrival some time after a thread asked for it, which had seen `seen`.
void ArriveBarrierFor(std::uint32_t barrier, const SeenRef& seen);
// Bytes of a bulk copy have landed, at [address, address + bytes).
void CompleteCopy(std::uint32_t barrier, std::uint32_t address, std::uint32_t bytes,
                  const void* code);
std::uint32_t BarrierAddress(const void* barrier);

}  // namespace quire::cuda_emulator
