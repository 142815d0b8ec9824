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
// Invariants: every value satisfies the rule of its key (options.proto), and all values together
//             satisfy the rules between keys (validator.h).
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
  // The argument MODEL, which sets model.path with priority over all other layers. Empty: not
  // given.
  std::string model = {};
  // Only variables whose names begin with QUIRE__ set keys. A name such as QUIRE_SECTION__KEY is an
  // error. Other names are ignored.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<std::string> profile_dirs = {};  // searched in order for `profile: NAME`
  // Added to every port after all layers are applied; see ShiftListenAddress.
  int port_offset = 0;
};

// Returns the QUIRE_... variables of this process.
std::vector<std::pair<std::string, std::string>> ConfigEnvironment();
// Returns share/quire/configs of the prefix that the running binary is installed in.
std::vector<std::string> InstalledProfileDirs();

class LayeredConfig {
 public:
  // Reads all layers. On any error returns null, and `errors` has up to 50 messages, followed by
  // the number of further errors if there are more.
  static std::unique_ptr<LayeredConfig> Load(const ConfigSources& sources,
                                             std::vector<std::string>* errors);
  ~LayeredConfig();

  const config::v1::Config& config() const { return *config_; }
  const Origins& origins() const { return origins_; }
  absl::Time load_time() const { return load_time_; }

  // Returns text that Load accepts, with "<redacted>" in place of secrets. YAML has the origin of
  // each value as a comment. Without `include_defaults`, values that no layer sets are left out.
  std::string Print(Spelling spelling, bool include_defaults = true) const;

  // Returns the value of one key in the format of Print, or "<redacted>" for secrets. REQUIRES: the
  // schema has the key.
  std::string PrintValue(absl::string_view path, Spelling spelling) const;

  // Returns the SHA-256 of Print(kJson) in lower-case hex. It depends neither on the layers that
  // set the values nor on secrets, which Print redacts.
  std::string Sha256() const;

 private:
  LayeredConfig();

  std::unique_ptr<config::v1::Config> config_;
  Origins origins_;
  absl::Time load_time_;
};

}  // namespace quire::server
