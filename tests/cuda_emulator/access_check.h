#pragma once

// Checks every memory access of kernels. Kernels are compiled with g++'s -fsanitize=thread, whose
// calls arrive here (access_hooks.cc). The models of asynchronous instructions report their
// accesses. The check aborts the process, naming the kernel and the lines, for
//
//   - two unsynchronized accesses of which at least one writes: by threads of a block, blocks of
//     a launch, or a kernel and its predecessor before DependencyWait;
//   - shared memory that is read before it was written, or during a copy to it;
//   - ordinary stores that wgmma or a bulk copy reads without FenceAsyncShared;
//   - registers of a wgmma product that are used before WgmmaWait;
//   - misaligned vector accesses, and memory that belongs to neither the device nor the thread.
//
// The order is defined by vector clocks and not by the actual execution, so one run covers every
// order of threads, blocks and stores. Votes, shuffles and matrix instructions synchronize nothing.
// Each four-byte word records its last write and the last reads of two threads. If two threads
// wrote its halves, the later one is recorded.
//
// A launch is checked completely or not at all (EmulatorOptions::check).
//
// Threads: as in simt.h.

#include <atomic>
#include <cstdint>

#include "tests/cuda_emulator/vector_clock.h"

namespace quire::cuda_emulator {

struct KernelLaunch;
struct Thread;

enum class Access : std::uint8_t { kRead, kWrite, kAtomic, kAsyncRead };

// True while the running launch is checked. All functions below do nothing otherwise.
extern constinit thread_local bool is_checking;
// True while any thread of the process checks. It is tested first, since it is the cheapest.
extern std::atomic<bool> some_thread_checks [[gnu::visibility("hidden")]];

// Starts a launch. `follows` means that it may overlap the previous one.
void BeginChecks(const KernelLaunch& launch, bool follows);
void EndChecks();

// Starts a block. Returns its number among all checked blocks of this process.
std::uint32_t BeginBlockChecks();

// The current thread accesses `bytes` bytes at p. `code` is the address of the access in the
// kernel.
void CheckAccess(const void* p, std::uint32_t bytes, Access access, const void* code);
// Aborts if p is not a multiple of `alignment` and is memory shared by threads.
void CheckAlignment(const void* p, std::uint32_t alignment);
// The same for bytes of the block's shared memory that one of its threads accesses.
void CheckShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes, Access access,
                 const void* code);

// A copy writes these bytes of shared memory between BeginCopy and EndCopy. It belongs to `thread`,
// or at time `clock` to the block member that represents the mbarrier.
void BeginCopy(std::uint32_t address, std::uint32_t bytes, const void* code);
void EndCopy(std::uint32_t address, std::uint32_t bytes, std::uint32_t member, std::uint32_t clock,
             const void* code);

// An atomic on device memory also releases and acquires.
void CheckAtomic(const void* p, std::uint32_t bytes, const void* code);

// Device memory was freed, in whole pages. Its records are discarded.
void ForgetAccesses(const void* p, std::uint64_t bytes);

// Registers of pending products, which are memory of the thread in the emulator.
void CheckRegisters(const void* p, std::uint32_t bytes, bool writes);

}  // namespace quire::cuda_emulator
