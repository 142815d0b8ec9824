#pragma once

// cp.async. The destination is NaN from the issue on and gets its bytes when the issuing thread
// waits for the group: neither a read that comes too early nor a copy over bytes still in use goes
// unnoticed.

#include <cstdint>

namespace quire::cuda_emulator {

// `bytes` is 4 or 16; both ends are aligned to it.
void IssueCopy(void* shared, const void* global, std::uint32_t bytes, bool valid);
void CommitCopies();
// Lands all but the newest `pending` groups of the calling thread.
void WaitCopies(std::uint32_t pending);
// Lands everything the calling thread has issued some time later, and then arrives at the mbarrier.
// WaitCopies does not know of these copies any more.
void ArriveAfterCopies(void* barrier);

// End the process when p is not a multiple of `alignment`, and when one of the bytes at p lies in
// no allocation that a device can read.
void CheckAligned(const void* p, std::uint32_t alignment, const char* what);
void CheckGlobal(const void* p, std::uint64_t bytes, const char* what);

}  // namespace quire::cuda_emulator
