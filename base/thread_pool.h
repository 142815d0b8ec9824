#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace quire {

struct ThreadPoolOptions {
  // Time that a worker or the caller spins before it sleeps. Waking a thread costs tens of
  // microseconds, so the time should cover the gaps between the phases of a step. A thread that
  // spins for longer can occupy the core that a working thread needs.
  absl::Duration spin = absl::Microseconds(50);
  // Thread i is bound to cpus[i]; BindCaller binds the caller, which is thread 0. Empty: no thread
  // is bound.
  std::vector<int> cpus = {};
};

// Runs one function on a fixed set of threads, which includes the caller, and waits for all of
// them.
//
// Place:      below the CPU kernels; one per model runner.
// Invariants: thread i always executes part i of a Run, so with a static partition a core accesses
//             the same memory in each Run. All parts use the caller's rounding mode and handling of
//             subnormal numbers. Results do not depend on timing.
// Threads:    one thread at a time calls Run and ParallelFor, and never from inside a part.
// Lifetime:   the destructor joins the workers; no Run may be in progress.
class ThreadPool {
 public:
  // `num_threads` counts the caller: 1 starts no thread. REQUIRES: num_threads >= 1; cpus is empty
  // or has num_threads entries.
  explicit ThreadPool(int num_threads, ThreadPoolOptions options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Binds the calling thread to cpus[0], or does nothing if `cpus` is empty. Threads that the
  // caller starts inherit the binding, so only a thread that mostly calls Run should call
  // BindCaller.
  void BindCaller() const;

  // Calls fn(0) to fn(size() - 1), part 0 on the calling thread, and returns when all calls have
  // returned. The caller then sees all writes of the parts. Does not allocate. `fn` must not throw.
  void Run(absl::FunctionRef<void(int part)> fn);

  // Splits [0, n) into at most size() ranges and calls fn(begin, end) for each. All ranges but the
  // last have the same length, a multiple of `grain`. The split depends only on n, grain and
  // size().
  template <typename Fn>
  void ParallelFor(std::int64_t n, std::int64_t grain, Fn&& fn) {
    if (n <= 0) return;
    const std::int64_t unit = std::max<std::int64_t>(grain, 1);
    const std::int64_t units = (n + unit - 1) / unit;
    const std::int64_t step = (units + size_ - 1) / size_ * unit;
    if (step >= n) {
      fn(std::int64_t{0}, n);
      return;
    }
    Run([&](int part) {
      const std::int64_t begin = part * step;
      if (begin < n) fn(begin, std::min(n, begin + step));
    });
  }

 private:
  void WorkerLoop(int part);

  const int size_;
  const ThreadPoolOptions options_;

  // The function of the current generation and the caller's floating-point modes. Run writes both
  // before it increments generation_.
  const absl::FunctionRef<void(int)>* work_ = nullptr;
  std::uint64_t float_modes_ = 0;
  std::atomic<std::uint32_t> generation_{0};  // incremented by each Run
  std::atomic<int> running_workers_{0};       // not yet done with generation_
  std::atomic<bool> stopping_{false};

  // Used to put threads to sleep and to wake them.
  Mutex mutex_;
  CondVar work_ready_;
  CondVar work_done_;
  std::atomic<int> sleeping_workers_{0};
  std::atomic<bool> is_caller_asleep_{false};

  std::vector<std::thread> workers_;
};

}  // namespace quire
