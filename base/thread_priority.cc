#include "base/thread_priority.h"

#include <sys/resource.h>

namespace quire {

void LowerThreadPriority() {
  // On Linux 0 is the calling thread alone, not its process. A sandbox may forbid the call.
  if (getpriority(PRIO_PROCESS, 0) < kBackgroundNice) {
    (void)setpriority(PRIO_PROCESS, 0, kBackgroundNice);
  }
}

}  // namespace quire
