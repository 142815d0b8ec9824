#pragma once

// A clock that advances only when a test calls Advance.

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace quire::testing {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::FromUnixSeconds(1'000'000'000)) : now_(now) {}

  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  absl::Time WallNow() const override {
    MutexLock lock(&mutex_);
    return now_ + wall_jump_;
  }

  void Advance(absl::Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
  }
  // Simulates that the machine's wall clock is set.
  void SetWallJump(absl::Duration jump) {
    MutexLock lock(&mutex_);
    wall_jump_ = jump;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  absl::Duration wall_jump_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::testing
