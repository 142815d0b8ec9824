#pragma once

// Reports the state of the process to a supervisor: implements systemd's sd_notify(3) without
// libsystemd.
//
//   Notifier notifier(NotifyTargetFromEnvironment());
//   notifier.Ready("serving the model qwen3-8b");  // the model is loaded
//   notifier.KeepAlive(clock.Now());               // periodically while the engine is alive
//   notifier.Stopping();                           // the drain begins
//
// Place:      used by the daemon. Without a supervisor every call does nothing.
// Invariants: if the supervisor does not read its socket, a call blocks for at most one second.
//             Send errors are logged and otherwise ignored.
// Threads:    any.
// Lifetime:   owns its socket.
//
// SOURCE: the protocol described in the manual page sd_notify(3).

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/mutex.h"

namespace quire::server {

struct NotifyTarget {
  // A path, or '@' and the name of an abstract socket; empty: no supervisor.
  std::string socket;
  // The supervisor kills a process that sends no keep-alive message for this long; infinite: no
  // watchdog.
  absl::Duration watchdog = absl::InfiniteDuration();
};

// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Invalid values of the first two are logged
// and ignored. There is no watchdog if WATCHDOG_PID is set to anything but the id of this process.
NotifyTarget NotifyTargetFromEnvironment();

class Notifier {
 public:
  explicit Notifier(const NotifyTarget& target);

  // Reports that the service is ready, or ready again after Reloading. `status` is one
  // human-readable line.
  void Ready(absl::string_view status);
  void Status(absl::string_view status);
  // Reports that the configuration is being reloaded. Call Ready afterwards, even if the reload
  // failed.
  void Reloading();
  void Stopping();

  // Reports that the process is alive. Sends at most one message per half of `watchdog`.
  void KeepAlive(absl::Time now);

 private:
  void Send(absl::string_view lines);

  const absl::Duration interval_;  // between keep-alive messages
  std::string address_;            // bytes of sockaddr_un::sun_path; empty: no supervisor
  FileDescriptor socket_;
  Mutex mutex_;
  absl::Time last_keep_alive_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace quire::server
