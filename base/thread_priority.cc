#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>

#include <cerrno>

namespace quire {
namespace {

// On Linux, id 0 with PRIO_PROCESS means the calling thread.
constexpr id_t kThisThread = 0;

}  // namespace

bool LowerPriority() {
  errno = 0;
  const int now = getpriority(PRIO_PROCESS, kThisThread);
  if (errno == 0 && now >= kBackgroundNice) return true;
  return setpriority(PRIO_PROCESS, kThisThread, kBackgroundNice) == 0;
}

void YieldAtLowPriority() {
  if (getpriority(PRIO_PROCESS, kThisThread) >= kBackgroundNice) sched_yield();
}

}  // namespace quire
