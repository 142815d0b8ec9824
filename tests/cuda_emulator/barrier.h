#pragma once

// mbarrier according to the PTX ISA. Pending arrivals, pending bytes and the phase parity are
// stored in the 64 bits in shared memory, so a kernel that overwrites a barrier or does not
// initialize it is detected.

#include <cstdint>

#include "tests/cuda_emulator/vector_clock.h"

namespace quire::cuda_emulator {

void InitBarrier(void* barrier, std::uint32_t arrivals);
// Adds `bytes` to the bytes that this phase waits for, then arrives once.
void ArriveBarrier(void* barrier, std::uint32_t bytes);
// Arrives once at the barrier at the same address in the block of this cluster rank.
void ArriveBarrierIn(std::uint32_t rank, void* barrier);
// Returns once the phase with this parity is complete.
void WaitBarrier(void* barrier, std::uint32_t parity);

// A deferred arrival of a thread that had seen `seen` when it requested it.
void ArriveBarrierFor(std::uint32_t barrier, const SeenRef& seen);
// Bytes of a bulk copy have arrived at [address, address + bytes).
void CompleteCopy(std::uint32_t barrier, std::uint32_t address, std::uint32_t bytes,
                  const void* code);
std::uint32_t BarrierAddress(const void* barrier);

}  // namespace quire::cuda_emulator
