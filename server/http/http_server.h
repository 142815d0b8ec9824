#pragma once

// An HTTP/1.1 server: connections, framing, limits and timeouts. A handler interprets the requests.
//
// No connection occupies a thread, so a slow, idle or long connection uses only memory and a
// descriptor. Boost.Beast parses the messages.
//
// If a connection limit is reached, a new connection evicts an idle or stalled connection. If no
// connection can be evicted, the new connection is over the limit. Its first request is then
// answered with 503, or served if it is a health probe (see is_probe), and the connection is
// closed. ConnectionTable bounds the number of such connections. Beyond that bound, the oldest
// connection over the limit or the new connection is closed without an answer.
//
// If no descriptor is free, up to 16 connections are evicted. If none can be evicted, up to 16
// connections of the kernel's accept queue are closed without an answer. After a short pause the
// server accepts again.
//
// Place:      below the operators' listener (http_listener.h) and the OpenAI-compatible listener.
// Invariants: these steps of a connection have deadlines: the handshake, a head, the next bytes of
//             a body, a whole body, a write, and the pause between two requests. Handlers have no
//             deadline. If a handler throws an exception, only the connection of its request is
//             closed.
// Threads:    the server starts `num_threads` threads, which run the handlers (see HttpExchange).
// Lifetime:   the destructor waits for all exchanges. Handlers must end their exchanges once the
//             peer has gone.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/error_reason.h"
#include "server/auth/certificate_store.h"
#include "server/http/http_message.h"

namespace quire::server {

struct HttpServerOptions {
  std::string address;  // host:port; port 0: any free port
  const char* thread_name = "http";
  int num_threads = 1;
  int max_connections = 256;
  std::optional<int> max_connections_per_address;  // absent: see ConnectionTable
  bool keep_alive = true;                          // false: one request per connection
  std::uint32_t max_head_bytes = 16 << 10;
  std::function<std::int64_t()> max_body_bytes = [] { return std::int64_t{0}; };
  absl::Duration head_time = absl::Seconds(10);  // for the handshake, then for each head
  absl::Duration body_time = absl::Seconds(60);
  absl::Duration body_silence_time = absl::Seconds(10);  // between two reads of a body
  absl::Duration idle_time = absl::Seconds(60);          // between requests of a connection
  // Maximum time for the client to read one answer, or one write of a stream.
  std::function<absl::Duration()> write_time = [] { return absl::Seconds(30); };
  // Called with the head of a request that has a body. If it returns an answer, the server sends
  // this answer without reading the body, so that a client without permission uses no memory. The
  // handler checks the whole request again. Null: all bodies are read.
  std::function<std::optional<HttpAnswer>(const HttpRequest& head)> check_before_body;
  // Returns true if the request is a health probe. A probe without a body is answered even on a
  // connection over the limit. Null: no request is a probe.
  std::function<bool(const HttpRequest& head)> is_probe;
  // Creates the answer to a request that the server itself refuses. `reason` is kInputTooLarge,
  // kFeatureUnsupported or a reason of the HTTP layer. The request is empty if its head could not
  // be read. Null: answers are plain text.
  std::function<HttpAnswer(Reason reason, absl::string_view message, const HttpRequest& request)>
      refuse;
  const CertificateStore* certificates = nullptr;  // null: plain text
  // If false, clients need no certificate, whatever tls.require_client_cert is. A certificate that
  // a client presents is verified anyway.
  bool requires_client_certificate = true;
};

class HttpServer {
 public:
  // Returns ALREADY_EXISTS if the port is in use, INVALID_ARGUMENT if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           HttpHandler handler);
  ~HttpServer();

  // Port 0 is replaced by the port that the system chose.
  const std::string& address() const;
  int num_connections() const;

  // Starts a request for /health over a new connection to the server's own address. If is_probe
  // returns true for that request, it is answered even if all connections are in use. See
  // is_reachable.
  void CheckReachable();
  // Returns true if a request of CheckReachable was answered in the last 20 s, or if the server was
  // created in the last 20 s.
  bool is_reachable() const;

  // Stops accepting and closes idle connections. Waits until `deadline` for unfinished answers,
  // then closes the remaining connections and waits for their handlers.
  void Shutdown(absl::Time deadline);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
