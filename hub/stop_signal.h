#pragma once

// Tells the threads of a download to stop, and interrupts their waits.
//
// Threads: any.

#include "absl/time/time.h"
#include "base/mutex.h"

namespace quire::hub {

class StopSignal {
 public:
  void Request();
  bool is_requested() const;
  // Waits for `duration`, or less if a stop is requested. Returns whether a stop was requested.
  bool WaitFor(absl::Duration duration) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool is_requested_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::hub
