#pragma once

// Child processes with a time limit, for a runner that uses only the C++ library.
//
// Threads: one thread.

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace quire::gpu_run {

// The runner is linked statically without libraries of the project, so it cannot use absl::Time.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline TimePoint After(Seconds seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
}

struct Command {
  std::vector<std::string> argv;   // argv[0] is a path
  std::vector<std::string> env{};  // NAME=value, in addition to the runner's environment
  std::string log{};               // receives standard output and standard error
};

// Starts processes, each in a process group of its own, and reaps them. SIGINT and SIGTERM do not
// end the runner while this object exists; interrupted() reports them, so that results are kept.
class Processes {
 public:
  Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Returns -1 if no process can be started. A program that cannot be executed exits with 127.
  pid_t Start(const Command& command);
  // Waits until a process ends, a signal arrives or `until`.
  void Wait(TimePoint until);
  // Returns the exit status of an ended process, 128 + N after signal N, and forgets the process.
  std::optional<int> TakeStatus(pid_t pid);
  // Kills a process and its children, and waits for it.
  void Kill(pid_t pid);
  // Runs a command to its end. Returns nullopt if it had to be killed.
  std::optional<int> Run(const Command& command, TimePoint until);

  bool interrupted() const { return interrupted_; }

 private:
  void Reap();

  sigset_t signals_{};
  std::map<pid_t, int> ended_;
  bool interrupted_ = false;
};

}  // namespace quire::gpu_run
