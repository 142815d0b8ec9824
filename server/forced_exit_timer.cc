#include "server/forced_exit_timer.h"

#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {

ForcedExitTimer::~ForcedExitTimer() {
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ForcedExitTimer::Arm(absl::Time deadline, int exit_code) {
  QUIRE_CHECK(!thread_.joinable());
  thread_ = std::thread([this, deadline, exit_code] { Wait(deadline, exit_code); });
}

void ForcedExitTimer::Wait(absl::Time deadline, int exit_code) {
  {
    MutexLock lock(&mutex_);
    while (!is_over_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
    if (is_over_) return;
  }
  log::Error("server", "the orderly end does not come, ending at once", {{"exit_code", exit_code}});
  std::_Exit(exit_code);
}

}  // namespace quire::server
