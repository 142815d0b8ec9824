#pragma once

// The door of the engine: how many requests and tokens may wait, and when to come back if that is
// too many. The waiting requests themselves are the scheduler's.
//
// Place:      asked by Accept (requests) and text workers (tokens); told by the engine thread.
// Invariants: 0 <= queued_requests <= max_queued_requests; 0 <= queued_tokens <= max_queued_tokens.
//             A request counts from Accept to its first step or its end; its tokens from
//             tokenization on.
// Threads:    every method from any thread.
// Lifetime:   the engine's.

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace quire::engine {

// Mean of events per second over the last ten whole seconds and the running one.
//
// Threads: one thread at a time.
class RateMeter {
 public:
  static constexpr int kWindowSeconds = 10;
  void Add(absl::Time now, std::int64_t count);
  double PerSecond(absl::Time now) const;

 private:
  void Advance(std::int64_t second) const;
  // Buckets of one second; entries older than the window are zeroed when the second advances.
  mutable std::int64_t counts_[kWindowSeconds] = {};
  mutable std::int64_t second_ = 0;
  absl::Time start_ = absl::InfiniteFuture();  // the first event
};

class AdmissionQueue {
 public:
  AdmissionQueue(std::int32_t max_requests, std::int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // RESOURCE_EXHAUSTED / QUEUE_FULL with the numbers and a retry delay when there is no room.
  absl::Status EnterRequest();
  absl::Status AddTokens(std::int64_t tokens);
  // The first step or the end of a request.
  void LeaveRequest();
  void RemoveTokens(std::int64_t tokens);

  // From the engine thread, once per step.
  void Update(std::int64_t uncached_tokens, double tokens_per_second);
  // Queued uncached tokens over the mean rate; the window's length when nothing ran in it.
  absl::Duration RetryDelay() const;

  std::int32_t queued_requests() const;
  std::int64_t queued_tokens() const;
  absl::Status CheckIntegrity() const;

 private:
  absl::Status Full(absl::string_view what, std::int64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration RetryDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::int32_t max_requests_;
  const std::int64_t max_tokens_;
  mutable Mutex mutex_;
  std::int32_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t uncached_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::engine
