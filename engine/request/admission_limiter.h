#pragma once

// Admission control: limits how many requests and tokens may wait, in total and per tenant, and
// computes a retry delay for rejected requests. Unread finished answers count towards the limits of
// waiting requests. The scheduler owns the waiting requests themselves.
//
// Place:      Accept counts requests in it, text workers count tokens, and the engine thread
//             updates it.
// Invariants: 0 <= queued_requests <= max_queued_requests; 0 <= queued_tokens <= max_queued_tokens.
//             After a limit was lowered, the counts may exceed it, but never the highest limit so
//             far. A request counts from Accept to its first step or its end, and its tokens count
//             from tokenization on.
// Threads:    thread-safe.
// Lifetime:   owned by the engine.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/tenant_limits.h"

namespace quire::engine {

// Mean number of events per second over the current second and the nine before it.
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
  absl::Time start_ = absl::InfiniteFuture();  // time of the first event
};

// The remaining work of the engine's requests, and the rate at which the engine does such work.
struct WorkAhead {
  std::int64_t prompt_tokens = 0;  // prompt tokens of waiting requests, without those in the cache
  std::int64_t output_tokens = 0;  // expected output tokens of running and waiting requests
  double prompt_tokens_per_second = 0;
  double output_tokens_per_second = 0;
};

// The shortest retry delay. After a shorter delay the client would find the queue still full.
inline constexpr absl::Duration kMinRetryDelay = absl::Seconds(1);
// The longest retry delay. A longer delay would be computed from a very low rate and be unreliable.
inline constexpr absl::Duration kMaxRetryDelay = absl::Minutes(10);

// The numbers of unread finished answers, which count towards the limits of requests
// (UnreadAnswers).
struct UnreadCounts {
  std::int32_t total = 0;
  std::int32_t of_tenant = 0;
};

class AdmissionLimiter {
 public:
  AdmissionLimiter(std::int32_t max_requests, std::int64_t max_tokens)
      : max_requests_(max_requests),
        max_tokens_(max_tokens),
        highest_requests_(max_requests),
        highest_tokens_(max_tokens) {}

  // Applies to later requests; requests in the queue stay.
  void SetLimits(std::int32_t max_requests, std::int64_t max_tokens, const TenantOptions& tenants);

  // Count a request, or the tokens of its prompt, as waiting. If a limit is reached, count nothing
  // and return RESOURCE_EXHAUSTED with reason TENANT_LIMIT or QUEUE_FULL and a retry delay.
  // AddTokens returns INVALID_ARGUMENT for a prompt that can never fit.
  absl::Status EnterRequest(const std::string& tenant, const UnreadCounts& unread);
  absl::Status AddTokens(const std::string& tenant, std::int64_t tokens);
  // Called at the first step or the end of a request.
  void LeaveRequest(const std::string& tenant);
  void RemoveTokens(const std::string& tenant, std::int64_t tokens);

  // The engine thread calls this every few milliseconds, and when the last request has ended.
  void Update(const WorkAhead& work);
  // Returns the time that the remaining work takes at the recent rates, if prompts and outputs are
  // processed in parallel. If no work was done recently, returns RateMeter::kWindowSeconds. The
  // result lies between kMinRetryDelay and kMaxRetryDelay.
  absl::Duration RetryDelay() const;

  std::int32_t queued_requests() const;
  std::int64_t queued_tokens() const;
  absl::Status CheckIntegrity() const;

 private:
  struct WaitingCounts {
    std::int32_t requests = 0;
    std::int64_t tokens = 0;
  };
  // Adds to the counts. A tenant without waiting requests is removed.
  void Count(const std::string& tenant, std::int32_t requests, std::int64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FullError(absl::string_view what, std::int64_t limit, std::int32_t unread) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTenantRequests(const std::string& tenant, std::int32_t unread) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTenantTokens(const std::string& tenant, std::int64_t more_tokens) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TenantFullError(const std::string& tenant, absl::string_view what,
                               absl::string_view key, std::int64_t value, std::int64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration RetryDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::int32_t max_requests_ ABSL_GUARDED_BY(mutex_);
  std::int64_t max_tokens_ ABSL_GUARDED_BY(mutex_);
  std::int32_t highest_requests_ ABSL_GUARDED_BY(mutex_);  // the highest limit so far
  std::int64_t highest_tokens_ ABSL_GUARDED_BY(mutex_);
  std::int32_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  TenantOptions tenants_ ABSL_GUARDED_BY(mutex_);
  // Maps each tenant to its counts. Their sums are requests_ and tokens_.
  std::map<std::string, WaitingCounts> waiting_by_tenant_ ABSL_GUARDED_BY(mutex_);
  WorkAhead work_ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::engine
