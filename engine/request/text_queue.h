#pragma once

// The prompts that wait for a text worker. The prompts of one tenant are in order of arrival, and
// the tenants are served round-robin. Between two prompts of one tenant, at most one prompt of each
// other tenant is served.
//
// Place:      between Accept and the text workers.
// Invariants: at most `max_prompts` prompts with at most `max_bytes` of input in total, checked
//             when one is added. A tenant with queued prompts has exactly one entry in the
//             rotation. After Close no push succeeds, and queued prompts can still be popped.
// Threads:    thread-safe.
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

  // Applies to later prompts; queued prompts stay.
  void SetLimits(std::int32_t max_prompts, std::int64_t max_bytes);
  // Returns RESOURCE_EXHAUSTED / QUEUE_FULL with `retry_delay` if the queue is full, and
  // UNAVAILABLE / SERVER_SHUTDOWN if it is closed.
  absl::Status Push(std::shared_ptr<AcceptedRequest> request, absl::Duration retry_delay);
  // Waits for a prompt. Returns null if the queue is closed and empty.
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
  std::list<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // the rotation: the next tenant first
  std::int32_t num_prompts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t num_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::engine
