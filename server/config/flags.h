#pragma once

// The flags of quired, apart from its main, so that its manual and its completion are made of the
// same ones.
//
// Place:      above layered_config.h; used by server/main.cc and by `quire`.
// Invariants: none.
// Threads:    main's.
// Lifetime:   plain values.

#include <string>

#include "server/config/layered_config.h"

namespace CLI {
class App;
}

namespace quire::server {

struct Flags {
  std::string model;  // short for --set model.path=MODEL; empty: not given
  ConfigSources sources;
  bool validate = false;
  std::string print_format;  // yaml or json; empty: do not print
};

// Registers all flags on `app`, which stores into `*flags` when it parses.
void AddFlags(CLI::App* app, Flags* flags);

}  // namespace quire::server
