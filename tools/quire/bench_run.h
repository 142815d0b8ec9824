#pragma once

// Runs a load against a server: the closed loop (each of so many clients sends its next request
// when the last has ended) and the open loop (requests go out at their times, however slow the
// answers are).
//
// Place:   behind `quire bench`.
// Threads: one for each request in flight, ended on return.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/quire/bench_load.h"
#include "tools/quire/bench_report.h"
#include "tools/quire/bench_target.h"

namespace quire::client {

struct RunOptions {
  std::int64_t first = 0;  // number of the first request
  std::int64_t count = 0;
  std::int64_t concurrency = 1;  // closed loop: clients; open loop: the most requests in flight
  // The open loop's times even where the workload has them; warm-up has no times.
  bool closed = false;
};

struct RunResult {
  double duration_seconds = 0;  // first request sent to last answer ended
  std::vector<RequestSample> samples;
};

// True in `stop` sends no further request; those in flight end by themselves. Requests that were
// not sent are not in the samples.
RunResult RunLoad(const Workload& workload, const TargetFactory& targets, const RunOptions& options,
                  const std::atomic<bool>& stop);

// Proportional set size of a process and its descendants now; 0 when it cannot be read.
std::int64_t PssBytes(int pid);

// Follows the largest PssBytes of a process, twice a second, from construction until Stop.
class MemoryWatch {
 public:
  explicit MemoryWatch(int pid);  // 0: watches nothing
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  std::int64_t Stop();

 private:
  int pid_;
  std::atomic<bool> stopping_{false};
  std::int64_t peak_ = 0;
  std::thread thread_;
};

}  // namespace quire::client
