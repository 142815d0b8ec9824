#pragma once

// What the process holds of the machine's memory, and giving back what it no longer uses.
//
// After a flood the allocator keeps what lies between blocks in use, and the heaps of other
// threads, until it is asked for them.
//
// Place:      the daemon's housekeeper; metrics.
// Threads:    ResidentBytes: any. FreeMemory: one.

#include <cstdint>

#include "absl/time/time.h"

namespace quire::server {

// 0 where /proc/self/statm cannot be read.
std::int64_t ResidentBytes();

// Makes glibc return the free end of a thread's heap once it is more than half a MiB. malloc_trim
// leaves these ends alone, and glibc by itself comes to keep 64 MiB of each once a large block has
// been freed. Small freed blocks are merged with their neighbours at once: otherwise malloc_trim
// merges them, and what becomes part of an end then stays until the thread's heap is used again.
// REQUIRES: before other threads.
void KeepHeapsSmall();

// Decides when free pages go back to the system. A trim returns the pages without a block in use.
// After a flood many pages still have one small block, such as a header of a connection. Freeing
// those hardly changes the number of bytes in use, but makes the pages free. So a trim follows not
// only when much more is free, but also when bytes in use have fallen by 64 KiB from their peak
// since the last trim, at most every 15 s. malloc_trim locks one arena at a time, so other threads
// may wait for it.
class FreeMemory {
 public:
  // Looks every few seconds. Trims when much more memory is resident beside the blocks in use than
  // after the last trim, or when the last trim is some seconds ago and bytes were freed since. A
  // trim takes this thread some milliseconds.
  void Tick(absl::Time now);

 private:
  void Trim(absl::Time now);

  absl::Time next_look_ = absl::InfinitePast();
  absl::Time last_trim_ = absl::InfinitePast();
  std::int64_t least_unused_bytes_ = 0;  // since the last trim
  std::int64_t most_bytes_in_use_ = 0;   // likewise
};

}  // namespace quire::server
