#pragma once

// The conservation check of `quire bench`: changes of the server's counters during the run must be
// consistent with each other and with the client's counts.
//
// Place:   used by `quire bench --metrics`.
// Threads: any.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/quire/bench_report.h"

namespace quire::client {

// Sums of the samples of each metric over all labels (docs/metrics.md).
struct ServerCounters {
  double accepted = 0, completed = 0, failed = 0, cancelled = 0;
  double prompt_tokens = 0, generation_tokens = 0;
  double running = 0, waiting = 0;  // current values
  double used_pages = 0;            // current value
};

// Parses the Prometheus text format. Missing metrics count as 0.
ServerCounters ParseCounters(absl::string_view text);

// Returns a message per violated rule. REQUIRES: no other client used the server meanwhile.
std::vector<std::string> CheckConservation(const ServerCounters& before,
                                           const ServerCounters& after,
                                           const std::vector<RequestSample>& samples);

// Returns true if the server counted more than the client, although no request failed or was
// cancelled. Such a violation is permanent, since counters only grow.
bool IsPermanentMismatch(const ServerCounters& before, const ServerCounters& after,
                         const std::vector<RequestSample>& samples);

}  // namespace quire::client
