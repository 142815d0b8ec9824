#pragma once

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace quire::engine {

// Blocks threads that pass while it is closed. It is open at first.
class Gate {
 public:
  void Set(bool closed) {
    MutexLock lock(&mutex_);
    closed_ = closed;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    ++arrivals_;
    changed_.NotifyAll();
    while (closed_) changed_.Wait(&mutex_);
  }
  // Waits until a thread has arrived at the gate.
  void AwaitArrival() {
    MutexLock lock(&mutex_);
    while (arrivals_ == 0) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::engine
