#pragma once

// What the accesses of checked launches would cost a device, by kernel: passes over the banks of
// shared memory, and sectors of device memory. An instruction of a warp is what its lanes do at one
// place of the code for the n-th time since they last met; where lanes go different ways that is a
// guess. Counted while QUIRE_EMULATOR_COUNTS names a file, which is written when the process ends.
//
// Threads: as simt.h.

#include <cstdint>

namespace quire::cuda_emulator {

struct Thread;

// Of a kernel, over all its launches.
struct AccessCounts {
  std::uint64_t shared_passes = 0;     // of warps' loads and stores: 32 banks of 4 bytes in each
  std::uint64_t shared_conflicts = 0;  // of those, the ones that conflicts cost
  std::uint64_t device_sectors = 0;    // of 32 bytes
  std::uint64_t device_bytes = 0;      // distinct ones of each instruction
};

extern constinit thread_local bool is_counting;

// A kernel begins, whose counts accesses add to from now on.
void BeginCounts(const char* kernel);
// At the end of a block, and wherever lanes of a warp have met.
void FinishWarp(std::uint32_t slot, std::uint32_t warp);

void CountShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes,
                 const void* code);
void CountDevice(const Thread& thread, const void* p, std::uint32_t bytes, const void* code);

// The same of one instruction: bit i of `lanes` is that lane i has addresses[i].
std::uint32_t SharedPasses(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                           std::uint32_t* least);
std::uint32_t Sectors(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                      std::uint32_t* distinct_bytes);

}  // namespace quire::cuda_emulator
