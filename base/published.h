#pragma once

// A value that is rarely replaced, always as a whole, and read by many threads. A reader may keep
// using the version that Get returned, even after a replacement.
//
// Place:      the active configuration and values derived from it (server/config/live_config.h).
// Invariants: a version never changes, and exists as long as a reader owns it.
// Threads:    thread-safe. Get locks a mutex to copy a pointer, so call it once per request and not
//             once per token.
// Lifetime:   must outlive all calls; versions may outlive it.

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

  // Returns the current version; never null.
  std::shared_ptr<const T> Get() const {
    MutexLock lock(&mutex_);
    return value_;
  }

  void Set(T value) { Set(std::make_shared<const T>(std::move(value))); }
  void Set(std::shared_ptr<const T> value) {
    MutexLock lock(&mutex_);
    value_.swap(value);  // destroys the old version after unlocking, unless a reader owns it
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire
