#pragma once

// Writes one log line, and makes one trace, per finished request.
//
// Place:      called by EndRecord (generation.h) at the end of a request.
// Invariants: neither the log line nor the trace contains text of a prompt or an output.
// Threads:    any.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/error_reason.h"
#include "server/tracing/trace_exporter.h"

namespace quire::server {

struct AccessRecord {
  absl::string_view method;  // a constant such as "Generate"
  std::string request_id, principal, tenant, model, traceparent;
  std::map<std::string, std::string> labels;
  std::string code = "OK";       // name of the gRPC code
  std::optional<Reason> reason;  // set if the request failed
  std::int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  absl::Duration time_to_first_token;  // since accept; 0: no token was sampled
  absl::Duration duration;
  std::optional<absl::Duration> queue_time;  // from accept to the first step, if there was one
};

void WriteAccessLog(const AccessRecord& record);

// Returns the trace of a request that ends at `end`, a wall time. Attributes have the names of
// OpenTelemetry's conventions. Names that begin with "quire." are our own.
TracedRequest MakeTrace(const AccessRecord& record, absl::Time end);

}  // namespace quire::server
