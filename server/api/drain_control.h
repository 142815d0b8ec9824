#pragma once

// Drain and Resume, asked for by a signal or by AdminService.
//
// Place:      owned by the daemon; changes ServingState and the engine together.
// Invariants: state DRAINING exactly while the engine refuses new requests for it. What is still
//             live at the deadline ends with UNAVAILABLE / SERVER_SHUTDOWN.
// Threads:    any.
// Lifetime:   the state and its model outlive it.

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/api/serving_state.h"

namespace quire::server {

class DrainControl {
 public:
  // `request_exit` is called, at most once, when a caller wants the process to end after the drain.
  DrainControl(ServingState* state, const Clock* clock, absl::Duration default_timeout,
               std::function<void()> request_exit);

  absl::Duration default_timeout() const;
  // For drains that begin later.
  void SetDefaultTimeout(absl::Duration timeout);

  // Stops admission. Repeated calls set a new deadline. UNAVAILABLE / MODEL_LOADING without a
  // model.
  absl::Status Begin(absl::Duration timeout, bool exit_after);
  // A drain under way ends after `timeout` at the latest.
  void Hasten(absl::Duration timeout);
  // FAILED_PRECONDITION / SHUTTING_DOWN once the process is ending; else OK, also when nothing was
  // to do.
  absl::Status Resume();
  // True when nothing is live; waits until then, or until the deadline of Begin has ended the rest.
  bool WaitDrained();
  // Ends what is live when the deadline has passed. Called now and then.
  void Tick();

 private:
  void EndAll(engine::Engine* engine);
  absl::Time deadline() const;

  ServingState* const state_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  absl::Duration default_timeout_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> request_exit_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace quire::server
