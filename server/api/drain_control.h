#pragma once

// Drains and resumes the server, on a signal or a call of AdminService.
//
// Place:      owned by the daemon; changes ServingState and the engine together.
// Invariants: the state is DRAINING exactly while the engine refuses requests because of a drain.
//             During the delay before a drain the state is READY and drain_started() is true.
//             Requests that are live at the deadline end with UNAVAILABLE / SERVER_SHUTDOWN.
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
  // `request_exit` is called at most once, when a drain with exit_after begins.
  DrainControl(ServingState* state, const Clock* clock, absl::Duration default_timeout,
               std::function<void()> request_exit);

  absl::Duration default_timeout() const;
  // Returns the end of the current drain, or InfiniteFuture() if there is none.
  absl::Time deadline() const;
  // Applies to later drains.
  void SetDefaultTimeout(absl::Duration timeout);

  // Reports not ready at once, and stops admission after `delay`. Live requests then have `timeout`
  // to finish. A repeated call during the delay can shorten the delay, but not extend it. A
  // repeated call after the delay sets a new deadline. Returns UNAVAILABLE / MODEL_LOADING if there
  // is no model yet, and UNAVAILABLE / DEVICE_ERROR if the engine has failed.
  absl::Status Begin(absl::Duration delay, absl::Duration timeout, bool exit_after);
  // Ends a delay that is running and stops admission. The drain has the timeout that Begin has set.
  void SkipDelay();
  // Shortens the deadline of the current drain to at most `timeout` from now.
  void ShortenDeadline(absl::Duration timeout);
  // Ends the drain or its delay, if there is one. Returns FAILED_PRECONDITION / SHUTTING_DOWN if
  // the process is exiting, and UNAVAILABLE / DEVICE_ERROR if the engine has failed.
  absl::Status Resume();
  // Waits until the delay is over and no request is live. At the deadline, cancels the live
  // requests and waits up to 2 s for them to end. Returns false if a request is still live then, or
  // if Resume or a failure of the engine has ended the drain.
  bool WaitDrained();
  // Stops admission if the delay is over, and cancels the live requests if the deadline has passed.
  // Called periodically.
  void Tick();

 private:
  bool is_delayed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return admit_until_ != absl::InfiniteFuture();
  }
  // Ends the delay. Begins the drain unless the engine has failed.
  void StopAdmission() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns after the delay, or when Resume or a failure of the engine ends it.
  void WaitDelay();
  void CancelAll(engine::Engine* engine);

  ServingState* const state_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  absl::Duration default_timeout_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> request_exit_ ABSL_GUARDED_BY(mutex_);
  CondVar state_changed_;
  // End of the delay, or InfiniteFuture() if no delay is running.
  absl::Time admit_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Duration timeout_ ABSL_GUARDED_BY(mutex_);  // timeout of the drain that follows the delay
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace quire::server
