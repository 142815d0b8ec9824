#pragma once

// A value that is replaced as a whole now and then and read by many: each reader goes on with the
// version that it took.
//
// Place:      the configuration in effect and what was made of it (server/config/live_config.h).
// Invariants: a version never changes, and lives as long as anybody has it.
// Threads:    every method from any thread. A reader holds the lock while it copies one pointer;
//             take the value once per request, not once per token.
// Lifetime:   outlives its readers' calls; versions outlive it.

#include <memory>
#include <utility>

#include "base/mutex.h"

namespace quire {

template <typename T>
class Published {
 public:
  Published() : value_(std::make_shared<const T>()) {}
  explicit Published(T value) : value_(std::make_shared<const T>(std::move(value))) {}
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  // Never null.
  std::shared_ptr<const T> Get() const {
    MutexLock lock(&mutex_);
    return value_;
  }

  void Set(T value) { Set(std::make_shared<const T>(std::move(value))); }
  void Set(std::shared_ptr<const T> value) {
    MutexLock lock(&mutex_);
    value_.swap(value);  // the old version ends outside the lock, if no reader holds it
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire
