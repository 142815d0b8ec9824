#include "server/forced_exit_timer.h"

#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {
namespace {

constexpr absl::Duration kTimeToSay = absl::Seconds(1);

}  // namespace

ForcedExitTimer::~ForcedExitTimer() {
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
    changed_.NotifyAll();
  }
  for (std::thread* thread : {&says_, &ends_}) {
    if (thread->joinable()) thread->join();
  }
}

void ForcedExitTimer::Arm(absl::Time deadline, int exit_code) {
  QUIRE_CHECK(!ends_.joinable());
  says_ = std::thread([this, deadline, exit_code] { Say(deadline, exit_code); });
  ends_ = std::thread([this, deadline, exit_code] { End(deadline, exit_code); });
}

bool ForcedExitTimer::WaitUntil(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!is_over_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
  return !is_over_;
}

void ForcedExitTimer::Say(absl::Time deadline, int exit_code) {
  if (!WaitUntil(deadline)) return;
  log::Error("server", "the orderly end does not come, ending at once", {{"exit_code", exit_code}});
  log::Flush(kTimeToSay);
  MutexLock lock(&mutex_);
  is_said_ = true;
  changed_.NotifyAll();
}

void ForcedExitTimer::End(absl::Time deadline, int exit_code) {
  if (!WaitUntil(deadline)) return;
  {
    MutexLock lock(&mutex_);
    const absl::Time last = deadline + kTimeToSay;
    while (!is_said_ && MonotonicNow() < last) changed_.WaitUntil(&mutex_, last);
  }
  _exit(exit_code);
}

}  // namespace quire::server
