#pragma once

// The prompts that wait for a text worker: those of one tenant in the order of their arrival, the
// tenants in turn, so that a prompt never waits for more than one of each other
// tenant before its own tenant's turn.
//
// Place:      between Accept and the text workers.
// Invariants: at most `max_prompts` of them, with at most `max_bytes` of input together, at the
//             time when one is added; a tenant has one turn as long as it has a prompt here. After
//             Close no push succeeds; what is inside can still be popped.
// Threads:    every method from any.
// Lifetime:   outlives every thread that waits in it.

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/accepted_request.h"

namespace quire::engine {

class TextQueue {
 public:
  TextQueue(std::int32_t max_prompts, std::int64_t max_bytes)
      : max_prompts_(max_prompts), max_bytes_(max_bytes) {}

  // For prompts that come from now on; none leaves.
  void SetLimits(std::int32_t max_prompts, std::int64_t max_bytes);
  // RESOURCE_EXHAUSTED / QUEUE_FULL with the numbers and `retry_delay` when there is no room,
  // UNAVAILABLE / SERVER_SHUTDOWN when it is closed.
  absl::Status Push(std::shared_ptr<AcceptedRequest> request, absl::Duration retry_delay);
  // Waits for one; null when the queue is closed and empty.
  std::shared_ptr<AcceptedRequest> Pop();
  // Wakes every waiting thread.
  void Close();

 private:
  mutable Mutex mutex_;
  CondVar not_empty_;
  std::int32_t max_prompts_ ABSL_GUARDED_BY(mutex_);
  std::int64_t max_bytes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<std::shared_ptr<AcceptedRequest>>> by_tenant_
      ABSL_GUARDED_BY(mutex_);
  std::list<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // tenants, the next one first
  std::int32_t prompts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::engine
