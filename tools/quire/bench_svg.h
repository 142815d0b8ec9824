#pragma once

// Draws the result of `quire bench` as an SVG image. It shows the latencies by percentile, and for
// each server a timeline of tokens per second, requests in flight and failures.
//
// Threads: any; pure functions.

#include <string>
#include <vector>

#include "tools/quire/bench_report.h"

namespace quire::client {

// Each element of `subjects` has the runs of one server under test. The timelines of several runs
// follow each other. Cancelled requests count in the timeline only. REQUIRES: there are one or two
// servers, and each has a run.
std::string BenchSvg(const std::vector<std::vector<BenchRun>>& subjects);

}  // namespace quire::client
