#pragma once

// Threads for calls that compute or wait: tokenizing or parsing megabytes, flushing the cache,
// waiting for a drain. The threads that move connections on never do.
//
// Place:      one per service; handlers push, a worker ends the call or hands it back.
// Invariants: every job that Run accepted is run, also during the destructor.
// Threads:    Run from any; the destructor from one.
// Lifetime:   the server is shut down before, so that no job is pushed any more.

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

  // RESOURCE_EXHAUSTED / QUEUE_FULL when `capacity` jobs wait already.
  absl::Status Run(std::function<void()> job);

 private:
  BoundedQueue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
