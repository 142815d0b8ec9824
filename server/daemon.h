#pragma once

// The process: owns listeners, model, engine and services, and takes them through their lives.
//
//   Listen -> load (LOADING) -> serve (READY) -> drain (DRAINING) -> close -> exit code
//
// Place:      the top; made by main.
// Invariants: listeners open before the model loads, so that health can be asked meanwhile; the
//             engine outlives the listeners.
// Threads:    Run from main's thread; the rest from any.
// Lifetime:   one per process.

#include <memory>

#include "server/config/layered_config.h"

namespace quire::server {

// Exit codes of the process.
inline constexpr int kExitOk = 0;
inline constexpr int kExitForced = 1;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitEngine = 70;
inline constexpr int kExitDevice = 71;
inline constexpr int kExitConfig = 78;

class Daemon {
 public:
  // `sources`: what `config` was loaded from, to be read again by Reload.
  Daemon(ConfigSources sources, std::unique_ptr<const LayeredConfig> config);
  ~Daemon();

  // Serves until a stop is asked for or something fails; returns the exit code. A stop while the
  // model loads, or files are read again, ends the process here without waiting for that thread.
  int Run();

  // Begins the end: not ready at once, no admission after shutdown.pre_drain_delay, then the drain.
  // Ends the process here, with kExitOk, while Run has not read its files yet.
  void RequestStop();
  // Has the configuration read again (live_config.h), on a thread of its own, and the log file
  // opened again whatever comes of it. Those asked for while one is under way become one.
  void RequestReload();
  // Live requests and state, to the log.
  void Dump();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
