#pragma once

// Measures the resident memory of the process and returns unused memory to the kernel.
//
// After a load peak, glibc's allocator keeps free memory between blocks in use, and in the heaps of
// other threads, until malloc_trim is called.
//
// Place:      used by the daemon's housekeeper and by metrics.
// Threads:    ResidentBytes is thread-safe. One thread uses a MemoryTrimmer.

#include <cstdint>

#include "absl/time/time.h"

namespace quire::server {

// Returns 0 if /proc/self/statm cannot be read.
std::int64_t ResidentBytes();

// Makes glibc return the free top of a thread's heap if it is larger than half a MiB. malloc_trim
// does not return these tops. By default, once a large block was freed, glibc keeps up to 64 MiB of
// each top. Also disables fast bins, so that a small block is merged with its free neighbours when
// it is freed. Otherwise malloc_trim could merge small blocks into a top, which stays resident
// until the thread uses its heap again. REQUIRES: called before other threads start.
void LimitFreeHeapTops();

// Decides when free pages are returned to the kernel by malloc_trim. A trim happens if unused
// memory rose by 4 MiB above its minimum since the last trim.
//
// A trim returns only pages without an allocated block. After a load peak, many pages still contain
// one small block, such as a header of a connection. Freeing these blocks hardly changes the bytes
// in use, but frees the pages. Therefore a trim also happens if the bytes in use fell by 64 KiB
// from their peak since the last trim, but at most every 15 s. malloc_trim locks one arena at a
// time, so other threads may wait.
class MemoryTrimmer {
 public:
  // Call periodically. Checks every few seconds whether a trim is due. A trim takes milliseconds.
  void Tick(absl::Time now);

 private:
  void Trim(absl::Time now);

  absl::Time next_check_ = absl::InfinitePast();
  absl::Time last_trim_ = absl::InfinitePast();
  std::int64_t min_unused_bytes_ = 0;  // minimum since the last trim
  std::int64_t max_bytes_in_use_ = 0;  // maximum since the last trim
};

}  // namespace quire::server
