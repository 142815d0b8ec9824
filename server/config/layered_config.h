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
// Lifetime:   owns everything it returns.

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
  std::vector<std::string> files = {};  // --config, in command-line order
  std::vector<std::string> sets = {};   // --set "path=value", in command-line order
  // The argument MODEL, which sets model.path above all other layers; empty: not given.
  std::string model = {};
  // Names other than QUIRE__... are ignored, but QUIRE_SECTION__KEY is an error.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<std::string> profile_dirs = {};  // searched in order for `profile: NAME`
  // Added to every port after all layers; see ShiftListenAddress.
  int port_offset = 0;
};

// Returns the QUIRE_... variables of this process.
std::vector<std::pair<std::string, std::string>> ConfigEnvironment();
// Returns share/quire/configs of the prefix that the running binary is installed in.
std::vector<std::string> InstalledProfileDirs();

class LayeredConfig {
 public:
  // Reads all layers. Returns null on any error; then `errors` has at most 50 messages, followed by
  // the number of further errors.
  static std::unique_ptr<LayeredConfig> Load(const ConfigSources& sources,
                                             std::vector<std::string>* errors);
  ~LayeredConfig();

  const config::v1::Config& config() const { return *config_; }
  const Origins& origins() const { return origins_; }
  absl::Time load_time() const { return load_time_; }

  // Returns text that Load accepts. YAML has the origin of each value as a comment. Without
  // `include_defaults`, values that no layer sets are left out.
  std::string Print(Spelling spelling, bool include_defaults = true) const;

  // Returns the value of one key in the format of Print, or "<redacted>" for secrets. REQUIRES: the
  // schema has the key.
  std::string PrintValue(absl::string_view path, Spelling spelling) const;

  // Returns the SHA-256 of all values in lower-case hex. It does not depend on the layers that set
  // them.
  std::string Sha256() const;

 private:
  LayeredConfig();

  std::unique_ptr<config::v1::Config> config_;
  Origins origins_;
  absl::Time load_time_;
};

}  // namespace quire::server
