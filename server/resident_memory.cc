#include "server/resident_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace quire::server {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Seconds(5);
constexpr std::int64_t kWorthIt = 8 << 20;

}  // namespace

// Second number of /proc/self/statm: resident pages.
std::int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void FreeMemory::Tick(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  const std::int64_t resident = ResidentBytes();
  const auto free = static_cast<std::int64_t>(mallinfo2().fordblks);
  if (free > free_bytes_ + kWorthIt || (free > kWorthIt && resident > resident_bytes_ + kWorthIt)) {
    malloc_trim(0);
    free_bytes_ = free;
    resident_bytes_ = ResidentBytes();
  } else {
    free_bytes_ = std::min(free_bytes_, free);
    resident_bytes_ = std::min(resident_bytes_, resident);
  }
}

}  // namespace quire::server
