#pragma once

// The queue of signals from other threads to the engine thread.
//
// Place:      Engine::Accept, the text and output workers, the readers and the control calls post
//             to the engine thread.
// Invariants: the number of queued signals is bounded, because Accept limits the live requests. A
//             live request posts one kArrived, one kPrepared and at most one kCancel. Each of its
//             choices posts at most one kStopMatched. Every control call waits for its answer.
//             Signals posted before Close are drained, and later ones are rejected, so none is lost
//             silently.
// Threads:    Post, Wake and Close from any thread; Drain and Wait from the engine thread.
// Lifetime:   shared, because a reader may outlive the engine.

#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/signal.h"

namespace quire::engine {

class Inbox {
 public:
  // Returns false and drops the signal after Close. The engine thread then ends every live request,
  // so only a caller that waits for the answer to a kCall must check the result.
  bool Post(Signal signal);
  // Ends the current or next Wait of the engine thread.
  void Wake();
  // Asks the engine thread to stop after it has handled the signals posted so far.
  void Close();
  // Replaces `out` by all posted signals. Returns false after Close, when no further signals can
  // follow.
  [[nodiscard]] bool Drain(std::vector<Signal>* out);
  // Returns when a signal was posted or Wake was called since the last Drain, or after `timeout`.
  // Returns at once after Close.
  void Wait(absl::Duration timeout);

 private:
  Mutex mutex_;
  CondVar posted_;
  std::vector<Signal> signals_ ABSL_GUARDED_BY(mutex_);
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::engine
