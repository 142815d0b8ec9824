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

// What is free at the end of a thread's heap goes back when it is more than half a MiB.
// malloc_trim leaves these ends alone, and glibc by itself comes to keep 64 MiB of each once a
// large block has been freed. REQUIRES: before other threads.
void KeepHeapsSmall();

class FreeMemory {
 public:
  // Looks every few seconds: when much more is resident beside the blocks in use than after the
  // last time, the free pages go back. That takes this thread some milliseconds.
  void Tick(absl::Time now);

 private:
  absl::Time next_look_ = absl::InfinitePast();
  std::int64_t least_unused_bytes_ = 0;  // since the last time
};

}  // namespace quire::server
