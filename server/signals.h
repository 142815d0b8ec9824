#pragma once

// The process's signals, taken by one thread that waits for them; no other thread ever sees one.
//
// Place:      made by main before any other thread, so that all threads inherit the blocked set.
// Invariants: signals that mean nothing here are ignored: SIGUSR2, SIGPIPE, SIGALRM, SIGVTALRM,
//             SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGXFSZ and the real-time signals. Those that ask
//             for a core (SIGQUIT and faults), SIGXCPU and the ones of job control keep their
//             meaning. Handlers run one after another on the signal thread, where anything may be
//             called. The second SIGTERM or SIGINT waits for no lock and no log.
// Threads:    its own.
// Lifetime:   what the handlers use outlives it.

#include <atomic>
#include <functional>
#include <thread>

namespace quire::server {

struct SignalHandlers {
  std::function<void()> stop;    // first SIGTERM or SIGINT; a second one exits with code 1
  std::function<void()> reload;  // SIGHUP
  std::function<void()> dump;    // SIGUSR1
};

// Blocks the signals for this thread and all that it starts, and ignores those without meaning.
// Called first in main.
void BlockSignals();
// From now on SIGTERM and SIGINT end the process at once, with 128 and their number, until
// BlockSignals is called again. For the time when it only reads files, one of which may be on a
// mount that does not answer. A handler of our own, since the first process of a container does not
// end without one. REQUIRES: BlockSignals was called.
void EndOnStopSignals();

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
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace quire::server
