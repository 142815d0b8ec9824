#pragma once

// The door of the engine: how many requests and tokens may wait, in all and of each tenant, and
// when to come back if that is too many. Finished answers that are not read take places of those
// that may wait. The waiting requests themselves are the scheduler's.
//
// Place:      asked by Accept (requests) and text workers (tokens); told by the engine thread.
// Invariants: 0 <= queued_requests <= max_queued_requests; 0 <= queued_tokens <= max_queued_tokens;
//             after a limit was lowered, until what entered before has left, the highest limit so
//             far. A request counts from Accept to its first step or its end; its tokens from
//             tokenization on.
// Threads:    every method from any thread.
// Lifetime:   the engine's.

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/tenant_limits.h"

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

// What the engine has to do for the requests that it has, and how fast it does such work.
struct WorkAhead {
  std::int64_t prompt_tokens = 0;  // that no cache holds, of requests that wait
  std::int64_t output_tokens = 0;  // expected, of requests that run and that wait
  double prompt_tokens_per_second = 0;
  double output_tokens_per_second = 0;
};

// No refusal says less: who comes back at once finds what refused him.
inline constexpr absl::Duration kMinRetryDelay = absl::Seconds(1);
// Nor more: a rate of next to nothing says little about the future.
inline constexpr absl::Duration kMaxRetryDelay = absl::Minutes(10);

// Finished answers that are not read, which the limits of requests hold too (UnreadAnswers).
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

  // For requests that enter from now on; none leaves.
  void SetLimits(std::int32_t max_requests, std::int64_t max_tokens);

  // The same for the limits of tenants.
  void SetTenants(const TenantOptions& tenants);

  // RESOURCE_EXHAUSTED / TENANT_LIMIT or QUEUE_FULL with the numbers and a retry delay when there
  // is no room.
  absl::Status EnterRequest(const std::string& tenant, const UnreadCounts& unread);
  absl::Status AddTokens(const std::string& tenant, std::int64_t tokens);
  // The first step or the end of a request.
  void LeaveRequest(const std::string& tenant);
  void RemoveTokens(const std::string& tenant, std::int64_t tokens);

  // From the engine thread, every few milliseconds, and behind the last step before a pause.
  void Update(const WorkAhead& ahead);
  // How long the work ahead takes at the rates of late, the prompts and the outputs side by side;
  // the window's length when nothing ran in it. Between kMinRetryDelay and kMaxRetryDelay.
  absl::Duration RetryDelay() const;

  std::int32_t queued_requests() const;
  std::int64_t queued_tokens() const;
  absl::Status CheckIntegrity() const;

 private:
  struct Waiting {
    std::int32_t requests = 0;
    std::int64_t tokens = 0;
  };
  // The counts change by so much; a tenant without a waiting request is forgotten.
  void Count(const std::string& tenant, std::int32_t requests, std::int64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full(absl::string_view what, std::int64_t limit, std::int32_t unread) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTenantRequests(const std::string& tenant, std::int32_t unread) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTenantTokens(const std::string& tenant, std::int64_t more_tokens) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TenantFull(const std::string& tenant, absl::string_view what, absl::string_view key,
                          std::int64_t value, std::int64_t limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration RetryDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::int32_t max_requests_ ABSL_GUARDED_BY(mutex_);
  std::int64_t max_tokens_ ABSL_GUARDED_BY(mutex_);
  std::int32_t highest_requests_ ABSL_GUARDED_BY(mutex_);  // of the limits so far
  std::int64_t highest_tokens_ ABSL_GUARDED_BY(mutex_);
  std::int32_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  TenantOptions tenants_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // by tenant; sums to the above
  WorkAhead ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::engine
