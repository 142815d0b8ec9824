#pragma once

// Models cp.async. The destination is NaN from the issue until the issuing thread waits for the
// group and the bytes arrive. A premature read and a copy over bytes in use are thus both detected.

#include <cstdint>

namespace quire::cuda_emulator {

// `bytes` is 4 or 16. Both ends are aligned to it.
void IssueCopy(void* shared, const void* global, std::uint32_t bytes, bool valid);
void CommitCopies();
// Completes all but the newest `pending` groups of the calling thread.
void WaitCopies(std::uint32_t pending);
// Completes all copies issued by the calling thread at some later time, and then arrives at the
// mbarrier. WaitCopies no longer covers these copies.
void ArriveAfterCopies(void* barrier);

// Abort if p is not a multiple of `alignment`, or if one of the bytes at p belongs to no allocation
// that a device can read.
void CheckAligned(const void* p, std::uint32_t alignment, const char* what);
void CheckGlobal(const void* p, std::uint64_t bytes, const char* what);

}  // namespace quire::cuda_emulator
