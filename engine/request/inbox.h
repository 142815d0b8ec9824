#pragma once

// What other threads tell the engine thread.
//
// Place:      into the engine thread: from Accept, text workers, output workers, readers and
//             control calls.
// Invariants: bounded without refusing: a live request posts one kArrived, one kPrepared, at most
//             one kCancel and one kStopMatched per choice, and live requests are bounded at Accept;
//             every control call waits for its answer. What was posted before Close is drained;
//             what comes later is refused. So nothing is lost unseen.
// Threads:    Post, Wake and Close from any thread; Drain and Wait from the engine thread.
// Lifetime:   shared, because a reader may outlive the engine.

#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/signal.h"

namespace quire::engine {

class Inbox {
 public:
  // Returns false, and drops the signal, once the inbox is closed. The engine thread then ends
  // every live request, so only a caller that waits for a kCall has to check.
  bool Post(Signal signal);
  // Makes a waiting engine look for work once.
  void Wake();
  // The engine thread is to stop when it has handled what was posted until now.
  void Close();
  // Replaces `out` by everything posted. False once it is closed: nothing comes after what is in
  // `out`.
  [[nodiscard]] bool Drain(std::vector<Signal>* out);
  // Returns when something was posted or woken since the last Drain, or after `timeout`; at once
  // when it is closed.
  void Wait(absl::Duration timeout);

 private:
  Mutex mutex_;
  CondVar posted_;
  std::vector<Signal> signals_ ABSL_GUARDED_BY(mutex_);
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::engine
