#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace quire::server {
namespace {

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // The default action of each of these signals would terminate the process.
  for (const int ignored :
       {SIGUSR2, SIGPIPE, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGXFSZ}) {
    signal(ignored, SIG_IGN);
  }
  for (int real_time = SIGRTMIN; real_time <= SIGRTMAX; ++real_time) signal(real_time, SIG_IGN);
}

void ExitOnStopSignals() {
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
  is_destroyed_ = true;
  // Any signal of the set wakes up the loop.
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalThread::Loop() {
  const sigset_t set = HandledSignals();
  bool stopping = false;
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (is_destroyed_) return;
    switch (signal) {
      case SIGTERM:
      case SIGINT:
        if (stopping) _exit(1);
        stopping = true;
        handlers_.stop(signal == SIGINT);
        break;
      case SIGHUP:
        handlers_.reload();
        break;
      case SIGUSR1:
        handlers_.dump();
        break;
    }
  }
}

}  // namespace quire::server
