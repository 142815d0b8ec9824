#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace quire {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` is true or `limit` has passed. Returns true if `done()` became true.
template <typename Done>
bool SpinUntil(absl::Duration limit, const Done& done) {
  // Reading the clock costs more than checking the flag, so the clock is read less often.
  constexpr int kChecksPerClockRead = 64;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limit);
  do {
    for (int i = 0; i < kChecksPerClockRead; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return done();
}

// Binds the thread to the CPU. If the CPU has been taken offline, the binding does not change.
void BindTo(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  (void)pthread_setaffinity_np(thread, sizeof(set), &set);
}

// The rounding mode, masked exceptions and handling of subnormal numbers of the calling thread.
#if defined(__x86_64__)
std::uint64_t FloatModes() {
  // The mask removes the sticky exception flags.
  return __builtin_ia32_stmxcsr() & ~0x3fu;
}
void SetFloatModes(std::uint64_t modes) {
  if (modes != FloatModes()) __builtin_ia32_ldmxcsr(static_cast<unsigned>(modes));
}
#elif defined(__aarch64__)
std::uint64_t FloatModes() {
  std::uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void SetFloatModes(std::uint64_t modes) {
  if (modes != FloatModes()) asm volatile("msr fpcr, %0" ::"r"(modes));
}
#else
std::uint64_t FloatModes() {
  return 0;
}
void SetFloatModes(std::uint64_t) {}
#endif

}  // namespace

ThreadPool::ThreadPool(int num_threads, ThreadPoolOptions options)
    : size_(num_threads), options_(std::move(options)) {
  QUIRE_CHECK(num_threads >= 1);
  const std::vector<int>& cpus = options_.cpus;
  QUIRE_CHECK(cpus.empty() || cpus.size() == static_cast<std::size_t>(num_threads));
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  for (int part = 1; part < num_threads; ++part) {
    workers_.emplace_back([this, part] {
      SetThreadName("compute");
      WorkerLoop(part);
    });
  }
  for (std::size_t i = 0; !cpus.empty() && i < workers_.size(); ++i) {
    BindTo(workers_[i].native_handle(), cpus[i + 1]);
  }
}

void ThreadPool::BindCaller() const {
  if (!options_.cpus.empty()) BindTo(pthread_self(), options_.cpus.front());
}

ThreadPool::~ThreadPool() {
  QUIRE_CHECK(running_workers_.load() == 0);
  {
    MutexLock lock(&mutex_);
    stopping_.store(true);
  }
  work_ready_.NotifyAll();
  for (std::thread& worker : workers_) worker.join();
}

// The wake-ups are Dekker handshakes: each side first stores its own flag and then reads the flag
// of the other side. A worker sets its sleep flag and then checks for work. Run publishes the work
// and then checks for sleeping workers. Similarly, Run sets its sleep flag and then checks for
// running workers. The last worker stores that it is done and then checks for a sleeping Run. With
// sequentially consistent atomics, at least one side sees the other side's store.
void ThreadPool::Run(absl::FunctionRef<void(int part)> fn) {
  if (size_ == 1) {
    fn(0);
    return;
  }
  QUIRE_DCHECK(running_workers_.load() == 0);
  work_ = &fn;
  float_modes_ = FloatModes();
  running_workers_.store(size_ - 1);
  generation_.fetch_add(1);
  if (sleeping_workers_.load() > 0) {
    // A worker holds the mutex from its last check until it waits. Taking the mutex here delays the
    // wake-up until then.
    { MutexLock lock(&mutex_); }
    work_ready_.NotifyAll();
  }
  fn(0);
  const auto is_done = [this] { return running_workers_.load() == 0; };
  if (SpinUntil(options_.spin, is_done)) return;
  MutexLock lock(&mutex_);
  is_caller_asleep_.store(true);
  while (!is_done()) work_done_.Wait(&mutex_);
  is_caller_asleep_.store(false);
}

void ThreadPool::WorkerLoop(int part) {
  std::uint32_t seen = 0;
  const auto has_new_work = [this, &seen] {
    return generation_.load() != seen || stopping_.load(std::memory_order_relaxed);
  };
  while (true) {
    if (!SpinUntil(options_.spin, has_new_work)) {
      MutexLock lock(&mutex_);
      sleeping_workers_.fetch_add(1);
      while (!has_new_work()) work_ready_.Wait(&mutex_);
      sleeping_workers_.fetch_sub(1);
    }
    if (stopping_.load()) return;
    seen = generation_.load();
    SetFloatModes(float_modes_);
    (*work_)(part);
    if (running_workers_.fetch_sub(1) == 1 && is_caller_asleep_.load()) {
      { MutexLock lock(&mutex_); }
      work_done_.NotifyOne();
    }
  }
}

}  // namespace quire
