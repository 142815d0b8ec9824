#pragma once

// The operators' HTTP listener. It answers GET and HEAD requests from memory, one request per
// connection.
//
// Place:      the daemon creates it, with the handlers of ops_handlers.h and status_handlers.h.
// Invariants: methods other than GET and HEAD get the status 405, unknown paths get 404, and
//             requests with a body get 413 before the body is read. /livez, /readyz, /startupz and
//             /metrics are answered even if all connections are in use.
// Threads:    handlers run concurrently on the listener's own threads. A connection occupies no
//             thread, so slow connections do not delay probes.
// Lifetime:   objects that the handlers use outlive the server.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"

namespace quire::server {

// Maps a path to its handler. Handlers must not throw.
using HttpHandlers = std::map<std::string, std::function<HttpAnswer(const HttpRequest&)>>;

struct HttpListenerOptions {
  std::string address;  // host:port; port 0: any free port
  int num_threads = 1;
  int max_connections = 256;
  std::optional<int> max_connections_per_address = {};  // absent: see ConnectionTable
};

// Returns the errors of HttpServer::Start. If `certificates` is null, serves plain text.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpListener(
    const HttpListenerOptions& options, HttpHandlers handlers,
    const CertificateStore* certificates = nullptr);

}  // namespace quire::server
