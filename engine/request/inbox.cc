#include "engine/request/inbox.h"

#include <utility>

#include "base/clock.h"

namespace quire::engine {

bool Inbox::Post(Signal signal) {
  {
    MutexLock lock(&mutex_);
    if (closed_) return false;
    signals_.push_back(std::move(signal));
    awake_ = true;
  }
  posted_.NotifyOne();
  return true;
}

void Inbox::Wake() {
  {
    MutexLock lock(&mutex_);
    awake_ = true;
  }
  posted_.NotifyOne();
}

void Inbox::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  posted_.NotifyOne();
}

bool Inbox::Drain(std::vector<Signal>* out) {
  out->clear();
  MutexLock lock(&mutex_);
  out->swap(signals_);
  awake_ = false;
  return !closed_;
}

void Inbox::Wait(absl::Duration timeout) {
  const absl::Time until = MonotonicNow() + timeout;
  MutexLock lock(&mutex_);
  while (!awake_ && !closed_ && (timeout == absl::InfiniteDuration() || MonotonicNow() < until)) {
    posted_.WaitUntil(&mutex_, until);
  }
}

}  // namespace quire::engine
