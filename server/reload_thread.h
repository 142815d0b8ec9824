#pragma once

// A thread that reloads the configuration on request. The signal thread cannot do that: a reload
// may block on a file for seconds, and SIGTERM must be handled meanwhile.
//
// Place:      owned by the daemon.
// Invariants: the requests during a reload cause one further reload in total.
// Threads:    Request is thread-safe. One thread calls the other methods.
// Lifetime:   this object and all objects that `reload` uses outlive the thread. The thread has
//             ended when Stop returns true.

#include <functional>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace quire::server {

class ReloadThread {
 public:
  explicit ReloadThread(std::function<void()> reload) : reload_(std::move(reload)) {}
  ReloadThread(const ReloadThread&) = delete;
  ReloadThread& operator=(const ReloadThread&) = delete;

  void Start();
  // A request before Start is served after Start.
  void Request();
  // Ends the thread. If a reload is running, returns false without waiting for it. The process must
  // then exit with _Exit, which destroys nothing.
  bool Stop();

 private:
  void Run();

  const std::function<void()> reload_;
  Mutex mutex_;
  CondVar changed_;
  bool is_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reloading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::server
