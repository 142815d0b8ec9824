#pragma once

// What kernels do to memory, access by access: kernels are compiled with g++'s -fsanitize=thread,
// whose calls arrive here (access_hooks.cc), and the models of asynchronous instructions tell
// theirs. Ends the process, naming the kernel and the lines, for
//
//   - two accesses of which one writes and no synchronisation orders them: threads of a block,
//     blocks of a launch, a kernel and the one in front of it before DependencyWait;
//   - shared memory that is read before it was written, or while a copy is under way to it;
//   - what ordinary stores wrote, read by wgmma or a bulk copy without FenceAsyncShared;
//   - registers of a wgmma product touched before WgmmaWait;
//   - vector accesses that are not aligned; memory that is neither the device's nor the thread's.
//
// Order is that of vector clocks, not of what happened to run first, so one run shows what some
// order of threads, blocks and stores would do. Votes, shuffles and matrix instructions order
// nothing. Of several accesses to one word of four bytes the last write and the last reads of two
// threads are remembered: of two threads that wrote its halves, the later one.
//
// A launch is checked or not as a whole (EmulatorOptions::check).
//
// Threads: as simt.h.

#include <atomic>
#include <cstdint>

#include "tests/cuda_emulator/vector_clock.h"

namespace quire::cuda_emulator {

struct KernelLaunch;
struct Thread;

enum class Access : std::uint8_t { kRead, kWrite, kAtomic, kAsyncRead };

// Whether the launch that runs now is checked. All below does nothing when it is not.
extern constinit thread_local bool is_checking;
// Whether some thread of the process checks: asked first, since it costs least.
extern std::atomic<bool> some_thread_checks;

// A launch begins. `follows`: it may overlap the one before.
void BeginChecks(const KernelLaunch& launch, bool follows);
void EndChecks();

// A block begins: its number, among all that were checked in this process.
std::uint32_t BeginBlockChecks();

// The current thread accesses `bytes` bytes at p. `code`: where, an address in the kernel.
void CheckAccess(const void* p, std::uint32_t bytes, Access access, const void* code);
// Ends the process if p, which is no multiple, is memory that threads share.
void CheckAlignment(const void* p, std::uint32_t alignment);
// The same for bytes of the block's shared memory, by a thread of it.
void CheckShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes, Access access,
                 const void* code);

// Bytes of shared memory that a copy writes from BeginCopy to EndCopy. The copy is one of `thread`,
// or of the member of the block that counts for the mbarrier, at its time `clock`.
void BeginCopy(std::uint32_t address, std::uint32_t bytes, const void* code);
void EndCopy(std::uint32_t address, std::uint32_t bytes, std::uint32_t member, std::uint32_t clock,
             const void* code);

// An atomic on device memory also releases and acquires.
void CheckAtomic(const void* p, std::uint32_t bytes, const void* code);

// Device memory that is freed, in whole pages: what is known of it takes no memory any more.
void ForgetAccesses(const void* p, std::uint64_t bytes);

// Registers of products under way, which are memory of the thread here.
void CheckRegisters(const void* p, std::uint32_t bytes, bool writes);

}  // namespace quire::cuda_emulator
