#pragma once

// The process: owns listeners, model, engine and services, and controls their lifecycle.
//
//   Listen -> load (LOADING) -> serve (READY) -> drain (DRAINING) -> close -> exit code
//
// Place:      the top level; created by main.
// Invariants: listeners open before the model loads, so that health checks work while loading. The
//             engine is destroyed after the listeners were shut down and all calls have ended.
// Threads:    the main thread calls Run. Other methods are thread-safe.
// Lifetime:   one per process.

#include <memory>

#include "absl/status/status.h"
#include "runtime/cpu_check.h"
#include "server/config/layered_config.h"

namespace quire::server {

// Exit codes of the process.
inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitEngine = 70;
inline constexpr int kExitDevice = 71;
inline constexpr int kExitConfig = 78;

// Returns the exit code for an error at start or of the engine. It is kExitDevice if the device
// failed or was lost, kExitEngine for an internal error, else kExitConfig.
int ExitCodeOf(const absl::Status& status);

class Daemon {
 public:
  // `config` was loaded from `sources`, which a reload reads again. `cpu_check` is the result of
  // CheckCpu for the configured device.
  Daemon(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
         runtime::CpuCheck cpu_check);
  ~Daemon();

  // Serves until a stop is requested or a failure occurs. Returns the exit code. Run does not wait
  // for a model that is still loading or for a reload. In these cases Run exits the process instead
  // of returning.
  int Run();

  // Begins the shutdown. The server is not ready from now on. It stops admission after
  // shutdown.pre_drain_delay, or at once if `skips_delay` is set, and then drains. If Run has not
  // yet read the files of tokens and certificates, exits the process with kExitOk.
  void RequestStop(bool skips_delay);
  // Reloads the configuration (live_config.h) on another thread. The log file is reopened even if
  // the reload fails. Calls during a reload cause one further reload in total.
  void RequestReload();
  // Logs state and live requests.
  void Dump();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
