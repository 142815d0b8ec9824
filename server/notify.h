#pragma once

// Tells a supervisor where the process is in its life: the datagrams of systemd's sd_notify(3),
// sent without libsystemd.
//
//   Notifier notifier(NotifyTargetFromEnvironment());
//   notifier.Ready("serving story");           // the model is loaded
//   notifier.KeepAlive(clock.Now());           // again and again, as long as the engine is alive
//   notifier.Stopping();                       // the drain begins
//
// Place:      used by the daemon. Without a supervisor every call does nothing.
// Invariants: a supervisor that does not read never holds up the caller for more than a second;
//             what cannot be sent is logged, and the daemon goes on.
// Threads:    every method from any thread.
// Lifetime:   owns its socket.
//
// SOURCE: the protocol as written in the manual page sd_notify(3).

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
  // The supervisor ends a process that is silent for this long; infinite: it does not.
  absl::Duration watchdog = absl::InfiniteDuration();
};

// NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Values that make no sense are logged and count as
// absent.
NotifyTarget NotifyTargetFromEnvironment();

class Notifier {
 public:
  explicit Notifier(const NotifyTarget& target);

  // The service is up, or up again after Reloading. `status` is one line for people; so below.
  void Ready(absl::string_view status);
  void Status(absl::string_view status);
  // Configuration is being read again; Ready ends it, whatever came of it.
  void Reloading();
  void Stopping();

  // The process is alive. Sends once per half of the watchdog's time, however often it is called.
  void KeepAlive(absl::Time now);

 private:
  void Send(absl::string_view lines);

  const absl::Duration interval_;  // between signs of life
  std::string address_;            // bytes of sockaddr_un::sun_path; empty: no supervisor
  FileDescriptor socket_;
  Mutex mutex_;
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace quire::server
