#pragma once

// The conservation check of `quire bench`: what the server counted between two readings of its
// metrics must add up, and agree with what the client saw.
//
// Place:   behind `quire bench --metrics`.
// Threads: any.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/quire/bench_report.h"

namespace quire::client {

// Sums of the samples of one family each over all its labels; docs/metrics.md.
struct ServerCounters {
  double accepted = 0, completed = 0, failed = 0, cancelled = 0;
  double prompt_tokens = 0, generation_tokens = 0;
  double running = 0, waiting = 0;  // now
  double used_pages = 0;            // now
};

// From the Prometheus text format; families that are not there count 0.
ServerCounters ParseCounters(absl::string_view text);

// Each rule that does not hold, in words. No other client may use the server meanwhile.
std::vector<std::string> CheckConservation(const ServerCounters& before,
                                           const ServerCounters& after,
                                           const std::vector<RequestSample>& samples);

// Whether the server counted more than the client saw although no request failed or was cancelled:
// counters only grow, so that a rule which this breaks stays broken.
bool CountedTooMuch(const ServerCounters& before, const ServerCounters& after,
                    const std::vector<RequestSample>& samples);

}  // namespace quire::client
