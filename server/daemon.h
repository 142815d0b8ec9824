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
  // model loads ends the process here, with kExitOk, without waiting for the loading thread.
  int Run();

  // Begins the end: not ready at once, no admission after shutdown.pre_drain_delay, then the drain.
  void RequestStop();
  // Reads the configuration again (live_config.h), and opens the log file again whatever comes of
  // it.
  void Reload();
  // Live requests and state, to the log.
  void Dump();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
