#include "engine/request/inbox.h"

#include <utility>

#include "absl/time/clock.h"

namespace quire::engine {

void Inbox::Post(Signal signal) {
  {
    MutexLock lock(&mutex_);
    signals_.push_back(std::move(signal));
    awake_ = true;
  }
  posted_.NotifyOne();
}

void Inbox::Wake() {
  {
    MutexLock lock(&mutex_);
    awake_ = true;
  }
  posted_.NotifyOne();
}

void Inbox::Drain(std::vector<Signal>* out) {
  out->clear();
  MutexLock lock(&mutex_);
  out->swap(signals_);
  awake_ = false;
}

void Inbox::Wait(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (!awake_ && (timeout == absl::InfiniteDuration() || absl::Now() < until)) {
    posted_.WaitUntil(&mutex_, until);
  }
}

}  // namespace quire::engine
