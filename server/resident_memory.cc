#include "server/resident_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace quire::server {
namespace {

constexpr absl::Duration kMemoryCheckInterval = absl::Seconds(5);
// Minimum time between two trims if the second one is only due to freed blocks.
constexpr absl::Duration kTrimInterval = absl::Seconds(15);
constexpr std::int64_t kMinTrimBytes = 4 << 20;
// Decrease of the bytes in use that counts as freed memory. In an idle daemon, the bytes in use
// vary by less.
constexpr std::int64_t kFreedBytes = 64 << 10;
constexpr int kMaxFreeTopBytes = 512 << 10;

std::int64_t BytesInUse() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace

// Reads the second number of /proc/self/statm: resident pages.
std::int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void LimitFreeHeapTops() {
  mallopt(M_TRIM_THRESHOLD, kMaxFreeTopBytes);
  mallopt(M_MXFAST, 0);
}

// Unused memory is computed as resident memory minus allocated blocks. The result includes the
// program, stacks, mapped files, and free blocks that were not returned. It is too low by the
// allocated blocks that were never written.
void MemoryTrimmer::Tick(absl::Time now) {
  if (now < next_check_) return;
  next_check_ = now + kMemoryCheckInterval;
  const std::int64_t in_use = BytesInUse();
  const std::int64_t unused = ResidentBytes() - in_use;
  max_bytes_in_use_ = std::max(max_bytes_in_use_, in_use);
  const bool has_freed = in_use + kFreedBytes < max_bytes_in_use_;
  if (unused > min_unused_bytes_ + kMinTrimBytes ||
      (has_freed && now >= last_trim_ + kTrimInterval)) {
    return Trim(now);
  }
  min_unused_bytes_ = std::min(min_unused_bytes_, unused);
}

void MemoryTrimmer::Trim(absl::Time now) {
  malloc_trim(0);
  last_trim_ = now;
  max_bytes_in_use_ = BytesInUse();
  min_unused_bytes_ = ResidentBytes() - max_bytes_in_use_;
}

}  // namespace quire::server
