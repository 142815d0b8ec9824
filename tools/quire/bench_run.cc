#include "tools/quire/bench_run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace quire::client {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Latest send time, thirty years. The 64-bit nanosecond clock overflows at ten times that.
constexpr double kMaxSeconds = 1e9;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

std::vector<RequestSample> CollectSent(std::vector<std::optional<RequestSample>> slots) {
  std::vector<RequestSample> samples;
  for (std::optional<RequestSample>& slot : slots) {
    if (slot.has_value()) samples.push_back(*std::move(slot));
  }
  return samples;
}

RunResult RunClosed(const Workload& workload, const TargetFactory& targets,
                    const RunOptions& options, const std::atomic<bool>& stop) {
  std::vector<std::optional<RequestSample>> slots(static_cast<std::size_t>(options.count));
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  const auto start = SteadyClock::now();
  for (std::int64_t t = 0; t < std::min(options.concurrency, options.count); ++t) {
    threads.emplace_back([&] {
      const std::unique_ptr<Target> target = targets();
      for (std::int64_t i = next++; i < options.count && !stop.load(); i = next++) {
        const LoadRequest request = workload.Request(options.first + i);
        const double sent = SecondsSince(start);
        std::optional<RequestSample>& slot = slots[static_cast<std::size_t>(i)];
        slot = target->Send(request);
        slot->start_seconds = sent;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {SecondsSince(start), CollectSent(std::move(slots))};
}

// Passes requests to idle threads, and starts another thread if none is idle.
class OpenLoop {
 public:
  OpenLoop(const TargetFactory& targets, std::int64_t max_threads, std::int64_t count,
           SteadyClock::time_point start, const std::atomic<bool>& stop)
      : targets_(targets),
        max_threads_(max_threads),
        start_(start),
        stop_(stop),
        slots_(static_cast<std::size_t>(count)) {}

  struct Job {
    std::size_t slot;
    LoadRequest request;
    SteadyClock::time_point time;
  };

  void Push(Job job) {
    MutexLock lock(&mutex_);
    jobs_.push_back(std::move(job));
    if (idle_ < static_cast<std::int64_t>(jobs_.size()) &&
        static_cast<std::int64_t>(threads_.size()) < max_threads_) {
      threads_.emplace_back([this] { Work(); });
    }
    has_job_.NotifyOne();
  }

  std::vector<RequestSample> End() {
    {
      MutexLock lock(&mutex_);
      ended_ = true;
      has_job_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    return CollectSent(std::move(slots_));
  }

 private:
  void Work() {
    const std::unique_ptr<Target> target = targets_();
    while (true) {
      std::optional<Job> job;
      {
        MutexLock lock(&mutex_);
        ++idle_;
        while (jobs_.empty() && !ended_) has_job_.Wait(&mutex_);
        --idle_;
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (stop_.load()) continue;  // stopped while the job waited for a thread
      const double late = SecondsSince(job->time);
      const double sent = SecondsSince(start_);
      slots_[job->slot] = target->Send(job->request);
      slots_[job->slot]->late_seconds = late;
      slots_[job->slot]->start_seconds = sent;
    }
  }

  const TargetFactory& targets_;
  const std::int64_t max_threads_;
  const SteadyClock::time_point start_;
  const std::atomic<bool>& stop_;
  std::vector<std::optional<RequestSample>> slots_;  // each written by one thread
  Mutex mutex_;
  CondVar has_job_;
  std::deque<Job> jobs_;
  std::int64_t idle_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

// Waits until `time` or until `stop` is true, which it checks every 0.1 s. Returns false if
// stopped.
bool WaitUntil(SteadyClock::time_point time, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    const auto now = SteadyClock::now();
    if (now >= time) return true;
    std::this_thread::sleep_until(std::min(time, now + std::chrono::milliseconds(100)));
  }
  return false;
}

RunResult RunOpen(const Workload& workload, const TargetFactory& targets, const RunOptions& options,
                  const std::atomic<bool>& stop) {
  const std::vector<double> times = workload.SendTimes(options.count);
  const auto start = SteadyClock::now();
  OpenLoop loop(targets, options.concurrency, options.count, start, stop);
  for (std::size_t i = 0; i < times.size(); ++i) {
    // Creates the request before its send time, because creating a long prompt takes a while.
    LoadRequest request = workload.Request(options.first + static_cast<std::int64_t>(i));
    const auto time = start + std::chrono::duration_cast<SteadyClock::duration>(
                                  std::chrono::duration<double>(std::min(times[i], kMaxSeconds)));
    if (!WaitUntil(time, stop)) break;
    loop.Push({i, std::move(request), time});
  }
  std::vector<RequestSample> samples = loop.End();
  return {SecondsSince(start), std::move(samples)};
}

// Returns the process id and the parent's process id of each process.
std::vector<std::pair<int, int>> Parents() {
  std::vector<std::pair<int, int>> parents;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    // pid (name, which may contain any character) state ppid ...
    const std::size_t end = line.rfind(')');
    if (end == std::string::npos) continue;
    std::istringstream rest(line.substr(end + 1));
    std::string state;
    int parent = 0;
    if (rest >> state >> parent) parents.emplace_back(pid, parent);
  }
  return parents;
}

std::int64_t PssOfProcess(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/smaps_rollup"));
  std::string word;
  while (file >> word) {
    std::int64_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Returns the proportional set size of a process and its descendants, or 0 if it cannot be read.
std::int64_t PssBytes(int pid) {
  const std::vector<std::pair<int, int>> parents = Parents();
  std::vector<int> family = {pid};
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < family.size(); ++i) {
    bytes += PssOfProcess(family[i]);
    for (const auto& [child, parent] : parents) {
      if (parent == family[i]) family.push_back(child);
    }
  }
  return bytes;
}

}  // namespace

RunResult RunLoad(const Workload& workload, const TargetFactory& targets, const RunOptions& options,
                  const std::atomic<bool>& stop) {
  return options.is_closed_loop || !workload.is_open() ? RunClosed(workload, targets, options, stop)
                                                       : RunOpen(workload, targets, options, stop);
}

MemorySampler::MemorySampler(int pid) : pid_(pid) {
  if (pid == 0) return;
  thread_ = std::thread([this] {
    while (!is_stopping_.load()) {
      peak_ = std::max(peak_, PssBytes(pid_));
      for (int i = 0; i < 10 && !is_stopping_.load(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
    peak_ = std::max(peak_, PssBytes(pid_));
  });
}

MemorySampler::~MemorySampler() {
  Stop();
}

std::int64_t MemorySampler::Stop() {
  is_stopping_.store(true);
  if (thread_.joinable()) thread_.join();
  return peak_;
}

}  // namespace quire::client
