#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace quire {

std::int64_t ThisThread() {
  return gettid();
}

bool LowerPriority(std::int64_t thread) {
  // On Linux the id is that of a thread, not of its process.
  const auto id = static_cast<id_t>(thread);
  errno = 0;
  const int now = getpriority(PRIO_PROCESS, id);
  if (errno == 0 && now >= kBackgroundNice) return true;
  return setpriority(PRIO_PROCESS, id, kBackgroundNice) == 0;
}

void GiveWay() {
  if (getpriority(PRIO_PROCESS, 0) >= kBackgroundNice) sched_yield();
}

absl::Duration ProcessorTime(std::int64_t thread) {
  // As pthread_getcpuclockid makes it of a thread: the id, and that it is a clock of one thread (4)
  // of what the scheduler gave it (2).
  const auto clock = static_cast<clockid_t>((~static_cast<std::uint32_t>(thread) << 3) | 6);
  timespec used = {};
  if (clock_gettime(clock, &used) != 0) return absl::InfiniteDuration();
  return absl::DurationFromTimespec(used);
}

}  // namespace quire
