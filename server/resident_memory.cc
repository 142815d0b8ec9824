#include "server/resident_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace quire::server {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Seconds(5);
constexpr std::int64_t kWorthIt = 4 << 20;
constexpr int kMaxHeapEnd = 512 << 10;

// What is resident and not in use by its owners: program, stacks, mapped files, and free blocks
// whose pages have not gone back. Blocks that are not written to yet make it less.
std::int64_t UnusedBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return ResidentBytes() - static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace

// Second number of /proc/self/statm: resident pages.
std::int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void KeepHeapsSmall() {
  mallopt(M_TRIM_THRESHOLD, kMaxHeapEnd);
}

void FreeMemory::Tick(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  if (const std::int64_t unused = UnusedBytes(); unused <= least_unused_bytes_ + kWorthIt) {
    least_unused_bytes_ = std::min(least_unused_bytes_, unused);
    return;
  }
  malloc_trim(0);
  least_unused_bytes_ = UnusedBytes();
}

}  // namespace quire::server
