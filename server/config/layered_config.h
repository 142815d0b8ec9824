#pragma once

// The effective configuration: built-in defaults < profile < files < environment < command line,
// with the origin of every value.
//
//   std::vector<std::string> errors;
//   auto config = LayeredConfig::Load(
//       {.files = {"prod.yaml"}, .sets = {"limits.max_choices=4"}}, &errors);
//   if (config == nullptr) ... print errors, exit 78
//
// Place:      above yaml_reader.h and validator.h; below options.h, which turns it into plain
//             structs.
// Invariants: every value satisfies its rule, and the cross-field rules of validator.h hold.
// Threads:    immutable after Load.
// Lifetime:   owns everything it shows.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/config/scalar_value.h"
#include "server/config/yaml_reader.h"

namespace quire::config::v1 {
class Config;
}

namespace quire::server {

struct ConfigSources {
  std::vector<std::string> files = {};  // --config, left to right
  std::vector<std::string> sets = {};   // --set, "path=value", left to right
  std::vector<std::pair<std::string, std::string>> environment = {};  // only QUIRE__... are read
  std::vector<std::string> profile_dirs = {};  // where `profile: NAME` is looked for, in this order
};

// QUIRE__... variables of this process.
std::vector<std::pair<std::string, std::string>> ConfigEnvironment();
// share/quire/configs beside the directory of the running binary.
std::vector<std::string> InstalledProfileDirs();

class LayeredConfig {
 public:
  // Null when there is any error; then `errors` has up to 50 lines for people. Reads files.
  static std::unique_ptr<LayeredConfig> Load(const ConfigSources& sources,
                                             std::vector<std::string>* errors);
  ~LayeredConfig();

  const config::v1::Config& config() const { return *config_; }
  const Origins& origins() const { return origins_; }
  absl::Time load_time() const { return load_time_; }

  // Text that Load accepts again. YAML has the origin of each value as a comment; without
  // `include_defaults` values that no layer set are left out.
  std::string Print(Spelling spelling, bool include_defaults = true) const;

  // The value of one key, as Print spells it; "<redacted>" for secrets. REQUIRES: the schema has
  // the key.
  std::string PrintValue(absl::string_view path, Spelling spelling) const;

  // SHA-256 of all values, in lower-case hex; equal for equal configurations whatever the layers
  // were.
  std::string Sha256() const;

 private:
  LayeredConfig();

  std::unique_ptr<config::v1::Config> config_;
  Origins origins_;
  absl::Time load_time_;
};

}  // namespace quire::server
