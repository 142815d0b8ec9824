#pragma once

// What a request is told that ends before its answer does.

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/request.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

struct EarlyEnd {
  CancelSource source = CancelSource::kClient;
  absl::Time time;
  absl::Duration slow_client_timeout;  // of the options, for kSlowClient
  absl::Duration retry_delay;          // of the queue, for kQueueTimeout
  std::string text = {};               // of the operator, for kAdmin
};

// With the reason of its source, the stage that the request had reached and what it has output.
absl::Status EarlyEndStatus(const ScheduledRequest& live, const EarlyEnd& end);

}  // namespace quire::engine
