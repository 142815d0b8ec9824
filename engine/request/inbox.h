#pragma once

// What other threads tell the engine thread.
//
// Place:      into the engine thread: from Accept, text workers, output workers, readers and
//             control calls.
// Invariants: bounded without refusing: a live request posts one kArrived, one kPrepared, at most
//             one kCancel, one kNoMemory and one kStopMatched per choice, and live requests are
//             bounded at Accept; every control call waits for its answer. What was posted before
//             Close is drained; what comes later is refused. So nothing is lost unseen.
// Threads:    Post, Wake and Close from any thread; Drain and Wait from the engine thread.
// Lifetime:   shared, because a reader may outlive the engine.

#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/accepted_request.h"
#include "engine/request/signal.h"

namespace quire::engine {

class Inbox {
 public:
  // False, and the signal is dropped, once it is closed: the engine thread ends every live request
  // then, so that only who waits for a call to be made has to look. The first needs memory; the
  // other posts what the list has, in its order, and needs none.
  bool Post(Signal signal);
  bool Post(Signals signals);
  // Makes a waiting engine look for work once.
  void Wake();
  // The engine thread is to stop when it has handled what was posted until now.
  void Close();
  // Replaces `out` by everything posted. False once it is closed: nothing comes after what is in
  // `out`.
  [[nodiscard]] bool Drain(Signals* out);
  // Returns when something was posted or woken since the last Drain, or after `timeout`; at once
  // when it is closed.
  void Wait(absl::Duration timeout);

 private:
  Mutex mutex_;
  CondVar posted_;
  Signals signals_ ABSL_GUARDED_BY(mutex_);
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::engine
