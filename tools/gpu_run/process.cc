#include "tools/gpu_run/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

namespace quire::gpu_run {
namespace {

[[noreturn]] void Become(const Command& command, const sigset_t& signals) {
  setpgid(0, 0);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  const int log = open(command.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int none = open("/dev/null", O_RDONLY);
  if (none >= 0) dup2(none, STDIN_FILENO);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  for (const std::string& variable : command.env) putenv(const_cast<char*>(variable.c_str()));
  std::vector<char*> argv;
  for (const std::string& word : command.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(127);
}

}  // namespace

Processes::Processes() {
  sigemptyset(&signals_);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&signals_, signal);
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
}

pid_t Processes::Start(const Command& command) {
  const pid_t pid = fork();
  if (pid == 0) Become(command, signals_);
  if (pid > 0) setpgid(pid, pid);
  return pid;
}

void Processes::Reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    ended_[pid] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

void Processes::Wait(TimePoint until) {
  const std::size_t before = ended_.size();
  Reap();
  while (ended_.size() == before && !interrupted_) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
    if (left.count() <= 0) return;
    const timespec timeout{.tv_sec = left.count() / 1'000'000'000,
                           .tv_nsec = left.count() % 1'000'000'000};
    const int signal = sigtimedwait(&signals_, nullptr, &timeout);
    interrupted_ = interrupted_ || signal == SIGINT || signal == SIGTERM;
    Reap();
  }
}

std::optional<int> Processes::TakeStatus(pid_t pid) {
  const auto found = ended_.find(pid);
  if (found == ended_.end()) return std::nullopt;
  const int status = found->second;
  ended_.erase(found);
  return status;
}

void Processes::Kill(pid_t pid) {
  if (pid <= 0) return;  // not started; kill() would signal other processes
  kill(-pid, SIGKILL);
  // A process that hangs in the driver may not die, so waiting for it is limited.
  const TimePoint until = After(Seconds(5));
  for (int status = 0; Clock::now() < until;) {
    if (ended_.erase(pid) > 0 || waitpid(pid, &status, WNOHANG) == pid) return;
    const timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&pause, nullptr);
  }
}

std::optional<int> Processes::Run(const Command& command, TimePoint until) {
  const pid_t pid = Start(command);
  if (pid < 0) return 127;
  for (;;) {
    if (const std::optional<int> status = TakeStatus(pid)) return status;
    if (interrupted_ || Clock::now() >= until) break;
    Wait(until);
  }
  Kill(pid);
  return std::nullopt;
}

}  // namespace quire::gpu_run
