#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace quire {

struct ThreadPoolOptions {
  // How long a worker, or the caller, spins before it sleeps. Waking a sleeper costs tens of
  // microseconds, so the phases of a step must find everybody awake; spinning for longer keeps a
  // core from the very thread that is waited for, on a machine that is shared.
  absl::Duration spin = absl::Microseconds(50);
  // cpus[i] is where thread i is bound, the caller (0) by BindCaller. Empty: no thread is bound.
  std::vector<int> cpus = {};
};

// Runs one function on a fixed set of threads, the caller among them, and waits for all of them.
//
// Place:      below the CPU kernels; one per model runner. Knows nothing of what it runs.
// Invariants: part i of a Run is always executed by thread i, so a static partition touches the
//             same memory from the same core; all parts compute with the caller's rounding and
//             treatment of subnormal numbers; results cannot depend on timing.
// Threads:    Run and ParallelFor from one thread at a time, and never from inside a part.
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

  // Binds the calling thread to cpus[0], if there is one. For a thread that from now on does little
  // but call Run: threads that it starts inherit the binding.
  void BindCaller() const;

  // Calls fn(0) .. fn(size() - 1), part 0 on the caller, and returns when all have returned. Writes
  // made by the parts are visible to the caller. Allocates nothing. `fn` must not throw.
  void Run(absl::FunctionRef<void(int part)> fn);

  // Splits [0, n) into at most size() ranges of equal length, rounded up to a multiple of `grain`,
  // and calls fn(begin, end) for each that is not empty. The split depends on n, grain and size()
  // only.
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

  // The work of a generation and the caller's floating-point modes; written by Run before it raises
  // generation_.
  const absl::FunctionRef<void(int)>* work_ = nullptr;
  std::uint64_t float_modes_ = 0;
  std::atomic<std::uint32_t> generation_{0};  // one more per Run
  std::atomic<int> running_{0};               // workers that have not finished this generation
  std::atomic<bool> stopping_{false};

  // Only threads that gave up spinning meet here.
  Mutex mutex_;
  CondVar work_ready_;
  CondVar work_done_;
  std::atomic<int> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};

  std::vector<std::thread> workers_;
};

}  // namespace quire
