#pragma once

// Threads for calls that compute or block: tokenizing or parsing megabytes, flushing the cache,
// waiting for a drain. Transport threads never run such work.
//
// Place:      one per service. Handlers push jobs; a job answers its call or passes it on.
// Invariants: every job that Run has accepted is executed, if necessary by the destructor.
// Threads:    Run is thread-safe. One thread calls the destructor.
// Lifetime:   destroyed after the server has shut down, so that no job is pushed any more.

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded_queue.h"

namespace quire::server {

class CallWorker {
 public:
  CallWorker(int num_threads, std::size_t capacity);
  ~CallWorker();
  CallWorker(const CallWorker&) = delete;
  CallWorker& operator=(const CallWorker&) = delete;

  // Returns RESOURCE_EXHAUSTED / QUEUE_FULL if `capacity` jobs are waiting.
  absl::Status Run(std::function<void()> job);

 private:
  BoundedQueue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
