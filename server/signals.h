#pragma once

// Handles the process's signals. One thread waits for them; all other threads block them.
//
// Place:      created by main before any other thread, so that all threads inherit the set of
//             blocked signals.
// Invariants: these signals are ignored: SIGUSR2, SIGPIPE, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
//             SIGPWR, SIGSTKFLT, SIGXFSZ and the real-time signals. Signals that are neither
//             handled nor ignored, such as SIGQUIT and SIGXCPU, keep their default action.
//             Handlers run one at a time on the signal thread and may call any function. The second
//             SIGTERM or SIGINT exits without waiting for a lock or the log.
// Threads:    the handlers run on the signal thread.
// Lifetime:   objects that the handlers use outlive the SignalThread.

#include <atomic>
#include <functional>
#include <thread>

namespace quire::server {

struct SignalHandlers {
  // First SIGTERM (false) or SIGINT (true); a second one exits with code 1.
  std::function<void(bool is_interrupt)> stop;
  std::function<void()> reload;  // SIGHUP
  std::function<void()> dump;    // SIGUSR1
};

// Blocks the signals of SignalHandlers in this thread and the threads that it starts, and ignores
// the signals listed above. Called first in main.
void BlockSignals();
// Makes SIGTERM and SIGINT exit the process at once, with 128 plus their number, until BlockSignals
// is called again. Used while the process only reads files, one of which may be on a mount that
// hangs. Installs a handler, because the kernel does not deliver signals with the default action to
// the first process of a container. REQUIRES: BlockSignals was called.
void ExitOnStopSignals();

class SignalThread {
 public:
  // REQUIRES: BlockSignals was called before any thread was started.
  explicit SignalThread(SignalHandlers handlers);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Loop();

  const SignalHandlers handlers_;
  std::atomic<bool> is_destroyed_{false};
  std::thread thread_;
};

}  // namespace quire::server
