#pragma once

// The status of a request that ends before its answer is complete.

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/request.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

struct EarlyEnd {
  CancelSource source = CancelSource::kClient;
  absl::Time time;
  absl::Duration slow_client_timeout;  // for kSlowClient: the configured timeout
  absl::Duration retry_delay;          // for kQueueTimeout: when the client should retry
  std::string text = {};               // for kAdmin: the operator's reason
};

// Returns the status whose Reason corresponds to `end.source`. For kDeadline, the status also names
// the stage that the request had reached and the number of its output tokens.
absl::Status EarlyEndStatus(const ScheduledRequest& live, const EarlyEnd& end);

}  // namespace quire::engine
