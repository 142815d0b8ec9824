#pragma once

// Exits the process if graceful shutdown hangs. If a step never ends, its requests stay alive, the
// requests keep their connections open, and shutdown waits for the engine thread.
//
// Place:      owned by the daemon, destroyed last.
// Invariants: armed once. At the deadline the process exits with `exit_code`, unless this object
//             has been destroyed by then. Since the log may hang too, one thread logs the exit and
//             a second one terminates the process. The second thread acquires only this timer's
//             lock and waits at most one second for the log line.
// Threads:    one thread at a time calls Arm and the destructor.

#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace quire::server {

class ForcedExitTimer {
 public:
  ForcedExitTimer() = default;
  ~ForcedExitTimer();
  ForcedExitTimer(const ForcedExitTimer&) = delete;
  ForcedExitTimer& operator=(const ForcedExitTimer&) = delete;

  void Arm(absl::Time deadline, int exit_code);

 private:
  // Returns false if the object is destroyed before the deadline.
  bool WaitUntil(absl::Time deadline);
  void LogForcedExit(absl::Time deadline, int exit_code);
  void ExitAtDeadline(absl::Time deadline, int exit_code);

  Mutex mutex_;
  CondVar changed_;
  bool is_destroyed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_logged_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread log_thread_;
  std::thread exit_thread_;
};

}  // namespace quire::server
