#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace quire
