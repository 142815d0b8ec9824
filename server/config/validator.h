#pragma once

// Rules between keys, and values that the schema allows but this version does not serve.
//
// Place:      called by LayeredConfig::Load after every value passed its own rule.
// Invariants: pure, apart from asking the system whether given paths exist.
// Threads:    any.
// Lifetime:   none.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/config/yaml_reader.h"

namespace quire::config::v1 {
class Config;
}

namespace quire::server {

// Appends one line per broken rule, each beginning with the origin of the value that breaks it.
void ValidateConfig(const config::v1::Config& config, const Origins& origins,
                    std::vector<std::string>* errors);

// A listen address taken apart: `unix:PATH` or `host:port` (`[v6]:port` for IPv6).
struct ListenAddress {
  bool is_unix = false;
  std::string path;  // Unix sockets
  std::string host;  // without brackets
  int port = 0;

  // 127.0.0.0/8, ::1, "localhost", or a Unix socket.
  bool is_loopback() const;
  // Every interface: 0.0.0.0, :: or "*".
  bool is_wildcard() const;
};

// False when `text` is no such address.
bool ParseListenAddress(absl::string_view text, ListenAddress* address);

}  // namespace quire::server
