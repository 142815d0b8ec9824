#pragma once

// Detects the protocol of a port, for messages to users who gave the address of another listener.
//
// Threads: any.

#include <string>

#include "absl/strings/string_view.h"

namespace quire::client {

enum class PortKind {
  kUnknown,     // nothing answers, or the protocol is another one
  kGrpc,        // HTTP/2 without TLS
  kOpenAi,      // quired's openai.listen, or another OpenAI-compatible server
  kMonitoring,  // quired's server.http.listen
  kHttp,        // another HTTP/1 server
  kTls,         // a TLS handshake succeeds
};

// Connects to `host_port` up to twice, for HTTP/1.1 requests or a TLS handshake. Each attempt takes
// up to two seconds. Certificates are not verified, and no credentials are sent.
PortKind ProbePort(const std::string& host_port);

// Returns what answers at `host_port` and which option or key to use instead, for a client that
// wanted the gRPC port. Returns "" if the probe does not explain a failure.
std::string ExplainGrpcFailure(absl::string_view host_port, bool uses_tls);

// Returns such an explanation for a client that wanted HTTP at `url`.
std::string ExplainHttpFailure(absl::string_view url);

}  // namespace quire::client
