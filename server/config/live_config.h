#pragma once

// The effective configuration and its reload. A reload reads all layers again, validates them and
// compares them with the effective configuration. It applies either every change or none.
//
//   SIGHUP, ReloadConfig -> Reload: load, compare, prepare all subscribers -> apply all
//
// A component that uses hot keys (keys that a reload may change) subscribes:
//
//   live->Subscribe("auth", [this](const DaemonOptions& next) -> absl::StatusOr<Apply> {
//     QUIRE_ASSIGN_OR_RETURN(auto tokens, ReadTokens(next.auth));  // may fail: rejects the reload
//     return [this, tokens] { tokens_.Set(tokens); };              // must not fail
//   });
//
// A component that needs only the values calls options() once per request instead.
//
// Place:      above LayeredConfig and DaemonOptions; owned by the daemon, used in server/.
// Invariants: config() and options() agree. At most one reload or subscription runs at a time. Keys
//             that are not hot never change. A hot key that determined the size of memory at start
//             cannot exceed its value at start. If a file of a subscriber has changed, it is read
//             only after its contents have been stable for a while (settled_files.h).
// Threads:    thread-safe. Subscribers run on the thread that calls Reload or Subscribe, and must
//             not call either.
// Lifetime:   the arguments of Subscribe stay valid until the last call of Reload.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "base/published.h"
#include "base/settled_files.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"

namespace quire::server {

// A key whose loaded value differs from its effective value.
struct ConfigChange {
  std::string path;       // "limits.max_queued_requests"
  std::string old_value;  // as YAML; "<redacted>" for secrets
  std::string new_value;
  std::string location;  // origin of the new value, as Origin::ToString returns it
  bool hot = false;      // a reload may change this key
};

struct ReloadResult {
  std::vector<ConfigChange> changed;   // changes that were applied, or with dry_run would be
  std::vector<ConfigChange> rejected;  // changes that need a restart
  std::vector<std::string> errors;     // reasons for refusing the reload; empty on success
  std::string config_sha256;           // Sha256 of the configuration in effect after the call

  bool ok() const { return errors.empty(); }
};

class LiveConfig {
 public:
  using Apply = std::function<void()>;
  // Validates the new options and reads the files of the subscriber, without visible effects.
  // Returns the function that applies them. The message of a returned error is shown to operators.
  using Prepare = std::function<absl::StatusOr<Apply>(const DaemonOptions& next)>;

  // Returns the files that Prepare reads. An empty function means no files.
  using Files = std::function<std::vector<NamedFile>(const DaemonOptions& next)>;

  // `config` was loaded from `sources`. Reload loads them again, with the environment and the
  // command line of the start and with the current contents of the files. `metrics` may be null.
  LiveConfig(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
             probe::Registry* metrics);

  std::shared_ptr<const LayeredConfig> config() const;
  std::shared_ptr<const DaemonOptions> options() const;
  // Options at the start of the process.
  const DaemonOptions& start_options() const { return start_options_; }

  // Prepares and applies the options now and on every reload. A reload does so even if no key has
  // changed, because files may have new contents. `files` returns the files that `prepare`
  // reads. If the first Prepare fails, returns its error and does not subscribe.
  absl::Status Subscribe(std::string name, Prepare prepare, Files files = {});

  // Reloads the configuration. With `dry_run`, only reports the differences; otherwise logs and
  // counts the result.
  ReloadResult Reload(bool dry_run);

 private:
  struct Version {
    std::shared_ptr<const LayeredConfig> config;
    std::shared_ptr<const DaemonOptions> options;
  };
  struct Subscriber {
    std::string name;
    Prepare prepare;
    Files files;
  };

  ReloadResult ReloadLocked(bool dry_run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<NamedFile> SubscribedFiles(const DaemonOptions& next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Apply> PrepareSubscribers(const DaemonOptions& next, ReloadResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const ReloadResult& result);
  void PublishLoadTime();
  void CountReload(absl::string_view result, double by);

  const ConfigSources sources_;
  const DaemonOptions start_options_;
  probe::Registry* const metrics_;
  Published<Version> version_;
  Mutex mutex_;  // serializes reloads and subscriptions
  std::vector<Subscriber> subscribers_ ABSL_GUARDED_BY(mutex_);
  FileStamps stamps_ ABSL_GUARDED_BY(mutex_);  // the files as they were last read and applied
};

}  // namespace quire::server
