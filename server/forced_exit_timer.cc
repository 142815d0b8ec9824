#include "server/forced_exit_timer.h"

#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {
namespace {

constexpr absl::Duration kLogTimeout = absl::Seconds(1);

}  // namespace

ForcedExitTimer::~ForcedExitTimer() {
  {
    MutexLock lock(&mutex_);
    is_destroyed_ = true;
    changed_.NotifyAll();
  }
  for (std::thread* thread : {&log_thread_, &exit_thread_}) {
    if (thread->joinable()) thread->join();
  }
}

void ForcedExitTimer::Arm(absl::Time deadline, int exit_code) {
  QUIRE_CHECK(!exit_thread_.joinable());
  log_thread_ = std::thread([this, deadline, exit_code] { LogForcedExit(deadline, exit_code); });
  exit_thread_ = std::thread([this, deadline, exit_code] { ExitAtDeadline(deadline, exit_code); });
}

bool ForcedExitTimer::WaitUntil(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!is_destroyed_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
  return !is_destroyed_;
}

void ForcedExitTimer::LogForcedExit(absl::Time deadline, int exit_code) {
  if (!WaitUntil(deadline)) return;
  log::Error("server", "graceful shutdown timed out, exiting now", {{"exit_code", exit_code}});
  log::Flush(kLogTimeout);
  MutexLock lock(&mutex_);
  is_logged_ = true;
  changed_.NotifyAll();
}

void ForcedExitTimer::ExitAtDeadline(absl::Time deadline, int exit_code) {
  if (!WaitUntil(deadline)) return;
  {
    MutexLock lock(&mutex_);
    const absl::Time last = deadline + kLogTimeout;
    while (!is_logged_ && MonotonicNow() < last) changed_.WaitUntil(&mutex_, last);
  }
  _exit(exit_code);
}

}  // namespace quire::server
