#pragma once

// The operators' HTTP listener: GET requests that are answered from memory, one a connection.
//
// Place:      made by the daemon; handlers come from ops_handlers.h.
// Invariants: other methods than GET and HEAD answer 405, unknown paths 404, bodies 413 before any
//             of them is read. Health and metrics are answered while all connections are in use.
// Threads:    handlers run on the listener's own threads, several at once. A connection holds no
//             thread, so slow ones cannot keep probes from being answered.
// Lifetime:   what the handlers use outlives it.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"

namespace quire::server {

// Path -> answer. Must not throw.
using HttpHandlers = std::map<std::string, std::function<HttpAnswer(const HttpRequest&)>>;

struct HttpListenerOptions {
  std::string address;  // host:port; port 0 takes any free one
  int num_threads = 1;
  int max_connections = 256;
  std::optional<int> max_connections_per_address = {};  // absent: see ConnectionTable
};

class HttpListener {
 public:
  // ALREADY_EXISTS when the port is taken. `certificates` null: plain text.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(
      const HttpListenerOptions& options, HttpHandlers handlers,
      const CertificateStore* certificates = nullptr);

  // With the port that port 0 became.
  const std::string& address() const { return server_->address(); }

 private:
  explicit HttpListener(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}

  const std::unique_ptr<HttpServer> server_;
};

}  // namespace quire::server
