#pragma once

// The command-line flags of quired. They are separate from main() because `quire` generates the
// manual and the shell completion from them.
//
// Place:      above layered_config.h; used by server/main.cc and by `quire`.
// Threads:    main thread.

#include <string>

#include "server/config/layered_config.h"

namespace CLI {
class App;
}

namespace quire::server {

struct Flags {
  ConfigSources sources;
  bool validate = false;
  bool self_check = false;
  std::string print_format;  // "yaml" or "json"; empty: do not print
};

// Registers all flags on `app`. Parsing stores their values into `*flags`.
void AddFlags(CLI::App* app, Flags* flags);

}  // namespace quire::server
