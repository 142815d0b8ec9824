#pragma once

// Runs a load against a server. In the closed loop each client sends its next request when
// its previous one has ended. In the open loop requests are sent at given times, however slow the
// answers are.
//
// Place:   used by `quire bench`.
// Threads: RunLoad starts one thread per request in flight and joins them before it returns.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tools/quire/bench_load.h"
#include "tools/quire/bench_report.h"
#include "tools/quire/bench_target.h"

namespace quire::client {

struct RunOptions {
  std::int64_t first = 0;  // index of the first request
  std::int64_t count = 0;
  std::int64_t concurrency = 1;  // closed loop: clients; open loop: maximum requests in flight
  // Use the closed loop even if the workload has send times; for the warm-up.
  bool is_closed_loop = false;
};

struct RunResult {
  double duration_seconds = 0;  // from the first request to the end of the last answer
  std::vector<RequestSample> samples;
};

// When `stop` becomes true, sends no further requests and waits for those in flight. The samples
// contain only requests that were sent.
RunResult RunLoad(const Workload& workload, const TargetFactory& targets, const RunOptions& options,
                  const std::atomic<bool>& stop);

// Samples the proportional set size of a process and its descendants twice a second until Stop,
// which returns the maximum.
class MemorySampler {
 public:
  explicit MemorySampler(int pid);  // 0: do not measure
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;

  std::int64_t Stop();

 private:
  int pid_;
  std::atomic<bool> is_stopping_{false};
  std::int64_t peak_ = 0;
  std::thread thread_;
};

}  // namespace quire::client
