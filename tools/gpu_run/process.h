#pragma once

// Child processes with a time limit, for a runner that links nothing but the C++ library.
//
// Threads: one.

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace quire::gpu_run {

// The runner is linked statically, with no library of ours: so not absl::Time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline TimePoint After(Seconds seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
}

struct Command {
  std::vector<std::string> argv;   // argv[0] is a path
  std::vector<std::string> env{};  // NAME=value, beside what the runner has
  std::string log{};               // receives both outputs
};

// Starts processes, each the leader of a group, and reaps them. SIGINT and SIGTERM do not end the
// runner while one lives: interrupted() tells of them, so that results are kept.
class Processes {
 public:
  Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Returns -1 when there is no process to be had. A program that cannot be started ends with 127.
  pid_t Start(const Command& command);
  // Until a process ends, a signal arrives or it is `until`.
  void Wait(TimePoint until);
  // The exit status of a process that has ended, 128 + N after signal N. Forgets it.
  std::optional<int> TakeStatus(pid_t pid);
  // Ends a process and all that it started, and waits for it.
  void Kill(pid_t pid);
  // Runs one to its end; nullopt when it had to be killed.
  std::optional<int> Run(const Command& command, TimePoint until);

  bool interrupted() const { return interrupted_; }

 private:
  void Reap();

  sigset_t signals_{};
  std::map<pid_t, int> ended_;
  bool interrupted_ = false;
};

}  // namespace quire::gpu_run
