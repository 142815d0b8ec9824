#include "hub/stop_signal.h"

#include "base/clock.h"

namespace quire::hub {

void StopSignal::Request() {
  const MutexLock lock(&mutex_);
  is_requested_ = true;
  changed_.NotifyAll();
}

bool StopSignal::is_requested() const {
  const MutexLock lock(&mutex_);
  return is_requested_;
}

bool StopSignal::WaitFor(absl::Duration duration) const {
  const absl::Time deadline = MonotonicNow() + duration;
  const MutexLock lock(&mutex_);
  while (!is_requested_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
  return is_requested_;
}

}  // namespace quire::hub
