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

class FreeMemory {
 public:
  // Looks every few seconds: when much of the heap is free that was not after the last time, or
  // much is resident that was not, the free pages go back. That takes this thread some
  // milliseconds.
  void Tick(absl::Time now);

 private:
  absl::Time next_look_ = absl::InfinitePast();
  // The least since the last time; free bytes that do not fill a page cannot go back.
  std::int64_t free_bytes_ = 0;
  std::int64_t resident_bytes_ = 0;
};

}  // namespace quire::server
