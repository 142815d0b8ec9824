#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "base/logging.h"

namespace quire::server {
namespace {

// Ends the loop; sent only by ~SignalThread.
constexpr int kWake = SIGUSR2;

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, kWake}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = OurSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void EndOnStopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT}) {
    signal(number, [](int number) { _exit(128 + number); });
    sigaddset(&set, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

SignalThread::SignalThread(SignalHandlers handlers)
    : handlers_(std::move(handlers)), thread_([this] { Loop(); }) {}

SignalThread::~SignalThread() {
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
}

void SignalThread::Loop() {
  const sigset_t set = OurSignals();
  bool stopping = false;
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    switch (signal) {
      case SIGTERM:
      case SIGINT:
        if (stopping) {
          log::Warn("server", "second signal, ending at once");
          _exit(1);
        }
        stopping = true;
        handlers_.stop();
        break;
      case SIGHUP:
        handlers_.reload();
        break;
      case SIGUSR1:
        handlers_.dump();
        break;
      default:
        return;
    }
  }
}

}  // namespace quire::server
