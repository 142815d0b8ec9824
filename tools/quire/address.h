#pragma once

// Reads the server addresses that users type.
//
// Threads: any.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::client {

struct ServerAddress {
  std::string target;      // for gRPC: host:port, unix:PATH or a target with gRPC's own scheme
  bool needs_tls = false;  // the text began with https:// or grpcs://
};

// Parses HOST, HOST:PORT, [IPV6]:PORT, unix:PATH, an absolute path of a socket, and the URLs
// http://, https://, grpc:// and grpcs:// with a host and a port. A missing port becomes
// `default_port`, or is an error if `default_port` is 0. Returns INVALID_ARGUMENT with the problem
// and the expected form.
absl::StatusOr<ServerAddress> ParseAddress(absl::string_view text, int default_port);

}  // namespace quire::client
