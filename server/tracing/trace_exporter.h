#pragma once

// Sends spans of finished requests to an OpenTelemetry collector with OTLP over gRPC
// (https://opentelemetry.io/docs/specs/otlp/). A request has one span, and a child span for each of
// its stages.
//
//   TraceExporter traces(options, &registry);
//   traces.Add({.name = "Generate", .traceparent = header, ...});   at the end of a request
//
// Place:      created by the daemon if tracing.otlp_endpoint is set. server/api/access_log.h adds
//             requests.
// Invariants: Add never waits for the network. At most kMaxQueuedSpans spans are queued or being
//             sent. Further spans are dropped and counted. A batch that fails with a retryable code
//             is sent again after growing pauses. A batch that fails otherwise is dropped and
//             counted.
// Threads:    Add is thread-safe. The exporter has a thread that sends.
// Lifetime:   the destructor tries for kLastExportTime to send the queued spans. The registry
//             outlives it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/probe.h"

namespace quire::server {

struct TracingOptions {
  std::string endpoint = {};  // host:port, http://host:port or https://host:port; empty: off
  double sample_ratio = 1.0;  // share of the requests without traceparent that are traced
  std::string version = {};   // version of the daemon
};

// Returns an error if the text is not an endpoint.
absl::Status CheckOtlpEndpoint(absl::string_view endpoint);

struct TracedRequest {
  using Value = std::variant<std::string, std::int64_t, double>;
  struct Stage {
    const char* name;
    absl::Duration duration;
  };

  std::string name;
  std::string traceparent;  // header of the caller; may be empty or malformed
  absl::Time start;         // wall time
  absl::Duration duration;
  std::vector<Stage> stages;  // in order, from `start` on
  std::vector<std::pair<std::string, Value>> attributes;
  std::string error;  // empty on success
};

class TraceExporter {
 public:
  static constexpr std::size_t kMaxQueuedSpans = 8192;
  static constexpr absl::Duration kLastExportTime = absl::Seconds(2);

  // REQUIRES: CheckOtlpEndpoint(options.endpoint).ok().
  TraceExporter(const TracingOptions& options, probe::Registry* registry);
  ~TraceExporter();

  void Add(const TracedRequest& request);

  // Ends the process if there are too many queued spans, or if a span is malformed.
  void CheckIntegrity() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
