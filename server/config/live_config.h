#pragma once

// The configuration in effect, and its reload: all layers are read again, checked and compared with
// what is in effect; either every change takes effect or none.
//
//   SIGHUP, ReloadConfig -> Reload: load, compare, every part prepares -> every part applies
//
// A part of the daemon that reads hot keys subscribes:
//
//   live->Subscribe("auth", [this](const DaemonOptions& next) -> absl::StatusOr<Apply> {
//     QUIRE_ASSIGN_OR_RETURN(auto tokens, ReadTokens(next.auth));  // may fail: refuses the reload
//     return [this, tokens] { tokens_.Set(tokens); };              // must not fail
//   });
//
// or, when it only needs the values, asks options() once per request.
//
// Place:      above LayeredConfig and DaemonOptions; owned by the daemon, asked in server/.
// Invariants: config() and options() agree. One reload or subscription at a time. Keys that are not
//             hot never change, and those that memory was planned for never exceed their value at
//             start. Files that a part reads and that have changed since they took effect are read
//             once they have stayed as they are for a while (settled_files.h).
// Threads:    every method from any thread; parts are called on the thread that reloads or
//             subscribes, and must not call Reload or Subscribe.
// Lifetime:   what Subscribe is given is valid as long as anybody may call Reload.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "base/published.h"
#include "base/settled_files.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"

namespace quire::server {

// One key whose value in the layers is not the one in effect.
struct ConfigChange {
  std::string path;       // "limits.max_queued_requests"
  std::string old_value;  // as YAML; "<redacted>" for secrets
  std::string new_value;
  std::string location;  // of the new value: file:line:column, "env NAME", "--set" or "default"
  bool hot = false;      // by the schema
};

// Every key that differs, in the order of the schema.
std::vector<ConfigChange> CompareConfigs(const LayeredConfig& old, const LayeredConfig& next);

struct ReloadResult {
  std::vector<ConfigChange> changed;   // that take effect, or would
  std::vector<ConfigChange> rejected;  // that need a restart
  std::vector<std::string> errors;     // why nothing changed, a line for each; empty: it did
  std::string config_sha256;           // of the configuration in effect afterwards

  bool ok() const { return errors.empty(); }
};

class LiveConfig {
 public:
  using Apply = std::function<void()>;
  // Checks what the options mean to a part and reads its files; changes nothing that anybody sees.
  // The status' message is shown to people.
  using Prepare = std::function<absl::StatusOr<Apply>(const DaemonOptions& next)>;

  // May be empty: none.
  using Files = std::function<std::vector<NamedFile>(const DaemonOptions& next)>;

  // `sources` are read again by Reload, environment and command line as they are in it. `metrics`
  // may be null.
  LiveConfig(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
             probe::Registry* metrics);

  std::shared_ptr<const LayeredConfig> config() const;
  std::shared_ptr<const DaemonOptions> options() const;
  // Of the start of the process.
  const DaemonOptions& start_options() const { return start_options_; }

  // Prepares and applies the options in effect now, then again with every reload, also one that
  // changes no key: files may have new contents. Returns the error of the first Prepare; then the
  // part is not known.
  // `files`: those that `prepare` reads.
  absl::Status Subscribe(std::string name, Prepare prepare, Files files = {});

  // `dry_run`: reports only. Otherwise the outcome is logged and counted.
  ReloadResult Reload(bool dry_run);

 private:
  struct Version {
    std::shared_ptr<const LayeredConfig> config;
    std::shared_ptr<const DaemonOptions> options;
  };
  struct Part {
    std::string name;
    Prepare prepare;
    Files files;
  };

  ReloadResult ReloadLocked(bool dry_run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<NamedFile> FilesOfParts(const DaemonOptions& next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Apply> PrepareParts(const DaemonOptions& next, ReloadResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const ReloadResult& result);
  void ShowLoadTime();
  void CountReload(absl::string_view result, double by);

  const ConfigSources sources_;
  const DaemonOptions start_options_;
  probe::Registry* const metrics_;
  Published<Version> version_;
  Mutex mutex_;  // a reload, or a subscription, at a time
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);
  FileStamps stamps_ ABSL_GUARDED_BY(mutex_);  // of the parts' files, when they took effect
};

}  // namespace quire::server
