#pragma once

// An HTTP/1.1 server: connections, framing, limits and times. What requests mean is the handler's.
//
// No connection holds a thread, so one that is slow, idle or long holds memory and a descriptor
// only; the bytes of a message are read by Boost.Beast's parser.
//
// Place:      below HttpListener (operators) and the OpenAI-compatible listener.
// Invariants: every accepted connection has a time by which its next step must be done: handshake,
//             head, the next bytes of a body and all of it, each write. ConnectionTable limits
//             their number and evicts one for a new one. If it can evict none, the new one is
//             answered 503 and closed, unless it asks for a probe. A handler that throws ends its
//             connection only. Without descriptors or memory connections are closed unheard, and
//             the server goes on accepting.
// Threads:    `num_threads` of its own run handlers; see HttpExchange.
// Lifetime:   the destructor waits for all exchanges, whose handlers must end them once the peer is
//             gone.

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
  std::string address;  // host:port; port 0 takes any free one
  const char* thread_name = "http";
  int num_threads = 1;
  int max_connections = 256;
  std::optional<int> max_connections_per_address;  // absent: see ConnectionTable
  bool keep_alive = true;                          // false: one request a connection
  std::uint32_t max_head_bytes = 16 << 10;
  std::function<std::int64_t()> max_body_bytes = [] { return std::int64_t{0}; };
  absl::Duration head_time = absl::Seconds(10);  // and of the handshake
  absl::Duration body_time = absl::Seconds(60);
  absl::Duration body_silence_time = absl::Seconds(10);  // between two pieces of a body
  absl::Duration idle_time = absl::Seconds(60);          // between requests of a connection
  // Of one answer, or one piece of a stream.
  std::function<absl::Duration()> write_time = [] { return absl::Seconds(30); };
  // Called with the head alone when the request has a body. An answer refuses the request before
  // its body is read, so that a client without permission fills no memory. The handler decides
  // again about the whole request. Null: all bodies are read.
  std::function<std::optional<HttpAnswer>(const HttpRequest& head)> admit;
  // Whether a request without body is answered though there is no place for its connection. Null:
  // none is.
  std::function<bool(const HttpRequest& head)> is_probe;
  // Answers that the server gives itself, for a reason that HTTP alone gives, kInputTooLarge or
  // kFeatureUnsupported. The request is empty where not even its head is known. Null: plain text.
  std::function<HttpAnswer(Reason reason, absl::string_view message, const HttpRequest& request)>
      refuse;
  const CertificateStore* certificates = nullptr;  // null: plain text
  // False: a client certificate is checked if it is shown, whatever tls.require_client_cert says.
  bool requires_client_certificate = true;
};

class HttpServer {
 public:
  // ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT for an address that is none of this
  // machine.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           HttpHandler handler);
  ~HttpServer();

  // With the port that port 0 became.
  const std::string& address() const;
  int num_connections() const;

  // Makes a call of /health through the front door. Where is_probe takes that for a probe, it needs
  // no place among the connections. See is_reachable.
  void CheckReachable();
  // A call of CheckReachable has been answered in the last 20 s, or none is that old.
  bool is_reachable() const;

  // Takes no more connections, closes idle ones, lets answers under way end until `deadline`, then
  // closes the remaining connections and waits for its handlers.
  void Shutdown(absl::Time deadline);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
