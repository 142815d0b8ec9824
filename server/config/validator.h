#pragma once

// Checks rules between keys, and values that the schema allows but this version does not support.
//
// Place:      called by LayeredConfig::Load after every value has passed its own rule.
// Invariants: no side effects. Files are checked only for existence and readability.
// Threads:    any.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/yaml_reader.h"

namespace quire::config::v1 {
class Config;
}

namespace quire::server {

// Appends one message per violated rule. Each begins with the origin of the offending value.
void ValidateConfig(const config::v1::Config& config, const Origins& origins,
                    std::vector<std::string>* errors);

inline constexpr int kMaxPort = 65535;

// A parsed listen address: `unix:PATH` or `host:port`, with `[v6]:port` for IPv6.
struct ListenAddress {
  bool is_unix = false;
  std::string path;  // path of a Unix socket
  std::string host;  // without brackets
  int port = 0;

  // Returns true for 127.0.0.0/8, ::1, "localhost" and Unix sockets.
  bool is_loopback() const;
  // Returns true for 0.0.0.0, :: and "*", which mean every interface.
  bool is_wildcard() const;
};

// Returns false if `text` is not a listen address.
bool ParseListenAddress(absl::string_view text, ListenAddress* address);

// Returns `text` with its port increased by `offset`. A Unix socket gets the suffix `.offset`
// instead. Returns `text` unchanged if `offset` or the port is 0, or if `text` is not a listen
// address. Returns OUT_OF_RANGE if the port would exceed 65535.
absl::StatusOr<std::string> ShiftListenAddress(const std::string& text, int offset);

}  // namespace quire::server
