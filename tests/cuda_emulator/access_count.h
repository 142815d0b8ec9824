#pragma once

// Estimates the cost of the accesses of checked launches on a device, by kernel: passes over the
// banks of shared memory, and sectors of device memory. An instruction of a warp consists of its
// lanes' n-th accesses at one place of the code since they last converged. Where lanes diverge,
// this is an approximation. Counting is active if QUIRE_EMULATOR_COUNTS names a file, which is
// written when the process ends.
//
// Threads: as in simt.h.

#include <cstdint>

namespace quire::cuda_emulator {

struct Thread;

// Counts of a kernel over all its launches.
struct AccessCounts {
  std::uint64_t shared_passes = 0;     // of warps' loads and stores: 32 banks of 4 bytes each
  std::uint64_t shared_conflicts = 0;  // the passes caused by conflicts
  std::uint64_t device_sectors = 0;    // of 32 bytes
  std::uint64_t device_bytes = 0;      // distinct bytes of each instruction
};

extern constinit thread_local bool is_counting;

// Starts a kernel, to which later accesses are attributed.
void BeginCounts(const char* kernel);
// Called at the end of a block, and wherever lanes of a warp converge.
void FinishWarp(std::uint32_t slot, std::uint32_t warp);

void CountShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes,
                 const void* code);
void CountDevice(const Thread& thread, const void* p, std::uint32_t bytes, const void* code);

// The cost of one instruction. Bit i of `lanes` is set if lane i accesses addresses[i].
std::uint32_t SharedPasses(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                           std::uint32_t* least);
std::uint32_t Sectors(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                      std::uint32_t* distinct_bytes);

}  // namespace quire::cuda_emulator
