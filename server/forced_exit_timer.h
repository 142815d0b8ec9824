#pragma once

// The end of a process whose orderly end does not come: a step that never ends holds its requests,
// these their connections, and the engine's thread is waited for by everybody.
//
// Place:      owned by the daemon, destroyed last.
// Invariants: armed once; the process ends by then, with the code, unless this is destroyed before.
//             A thread of its own says so in the log, which may be stuck as much as all else; the
//             one that ends the process takes no lock but this timer's and gives the log a second.
// Threads:    Arm and the destructor: one at a time.

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
  // False when this is destroyed before.
  bool WaitUntil(absl::Time deadline);
  void Say(absl::Time deadline, int exit_code);
  void End(absl::Time deadline, int exit_code);

  Mutex mutex_;
  CondVar changed_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_said_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread says_;
  std::thread ends_;
};

}  // namespace quire::server
