#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace quire {

// A bounded FIFO queue for any number of producer and consumer threads. A push to a full queue
// fails, and the producer decides which work to reject.
//
// Place:      between threads that exchange work: the output items of requests and the jobs of call
//             workers.
// Invariants: 0 <= size() <= capacity(). After Close every push fails; queued values can still be
//             popped.
// Threads:    thread-safe.
// Lifetime:   outlives every thread that waits on it.
template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity >= 1. Only the constructor and Reserve allocate memory.
  explicit BoundedQueue(std::size_t capacity) : slots_(capacity) { QUIRE_CHECK(capacity >= 1); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  std::size_t capacity() const {
    MutexLock lock(&mutex_);
    return slots_.size();
  }

  // Raises capacity() to `capacity` if it is lower. Allocates memory, so call it only when the
  // configuration changes.
  void Reserve(std::size_t capacity) {
    MutexLock lock(&mutex_);
    if (capacity <= slots_.size()) return;
    std::vector<std::optional<T>> slots(capacity);
    for (std::size_t i = 0; i < size_; ++i) {
      slots[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    }
    slots_ = std::move(slots);
    head_ = 0;
  }

  std::size_t size() const {
    MutexLock lock(&mutex_);
    return size_;
  }

  // If the queue is full or closed, returns false and leaves `value` unchanged.
  bool TryPush(T&& value) { return PushSome({&value, 1}) == 1; }

  // Pushes the first values of `values`, as many as fit, and returns their number. Pushes none if
  // the queue is closed. Leaves the other values unchanged.
  std::size_t PushSome(std::span<T> values) {
    std::size_t count = 0;
    {
      MutexLock lock(&mutex_);
      if (closed_) return 0;
      for (; count < values.size() && size_ < slots_.size(); ++count, ++size_) {
        slots_[(head_ + size_) % slots_.size()].emplace(std::move(values[count]));
      }
    }
    if (count == 1) not_empty_.NotifyOne();
    if (count > 1) not_empty_.NotifyAll();
    return count;
  }

  // Waits for a value. Returns nullopt when `deadline` passes, or when the queue is closed and
  // empty.
  std::optional<T> Pop(absl::Time deadline = absl::InfiniteFuture()) {
    MutexLock lock(&mutex_);
    if (!WaitNotEmpty(deadline)) return std::nullopt;
    return TakeFront();
  }

  // Waits for a value as Pop does, then appends up to `max` values to `out`. Returns the number of
  // appended values.
  std::size_t PopAll(std::size_t max, std::vector<T>* out,
                     absl::Time deadline = absl::InfiniteFuture()) {
    MutexLock lock(&mutex_);
    if (!WaitNotEmpty(deadline)) return 0;
    const std::size_t count = std::min(max, size_);
    for (std::size_t i = 0; i < count; ++i) {
      out->push_back(std::move(*slots_[head_]));
      DropFront();
    }
    return count;
  }

  // Wakes every waiting thread and makes all later pushes fail.
  void Close() {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
  }

 private:
  bool WaitNotEmpty(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (size_ == 0) {
      if (closed_ || MonotonicNow() >= deadline) return false;
      not_empty_.WaitUntil(&mutex_, deadline);
    }
    return true;
  }

  T TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    T value = std::move(*slots_[head_]);
    DropFront();
    return value;
  }

  void DropFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    slots_[head_].reset();
    head_ = (head_ + 1) % slots_.size();
    --size_;
  }

  mutable Mutex mutex_;
  CondVar not_empty_;
  std::vector<std::optional<T>> slots_ ABSL_GUARDED_BY(mutex_);  // ring buffer
  std::size_t head_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire
