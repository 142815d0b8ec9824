#pragma once

// One HTTP request and its answer: the interface between a connection and a handler.
//
//   handler(exchange): exchange->Answer({...}), now or later
//   or:                exchange->BeginStream({...}); Write(bytes, next) ...; EndStream(true)
//
// Place:      between HttpServer, which implements it, and the handlers of the two HTTP listeners
//             (for operators, and OpenAI-compatible).
// Invariants: each exchange has one Answer or one stream, and at most one pending Write. Once the
//             peer has gone, later writes are dropped and only the callback of OnGone runs.
// Threads:    Post is thread-safe. Other methods and all callbacks run on the strand of the
//             connection.
// Lifetime:   shared. The server waits for all exchanges before it ends.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // in upper case, as sent
  std::string path;     // without query, percent-decoded
  std::string query;    // after '?', as sent
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string certificate_name;  // common name of a client certificate that TLS has verified

  // Returns the first value of a header, or "". `name` is in lower case.
  absl::string_view Header(absl::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  HttpHeaders headers = {};  // sent in addition to the headers that every answer has
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Valid until the exchange has ended.
  virtual const HttpRequest& request() const = 0;
  // Moves the body out, so that a large body need not live as long as the exchange.
  virtual std::string TakeBody() = 0;

  // Runs `work` on the strand of the connection.
  virtual void Post(std::function<void()> work) = 0;

  virtual void Answer(HttpAnswer answer) = 0;

  // Begins an answer whose body is sent in several writes. The head is sent with the first write.
  virtual void BeginStream(HttpAnswer head) = 0;
  virtual void Write(std::string bytes, std::function<void()> on_written) = 0;
  // If `is_complete` is false, the chunk that marks the end of a complete body is not sent, and the
  // connection is closed.
  virtual void EndStream(bool is_complete) = 0;

  // Sets a callback that runs once if the peer closes, or does not read in time, before the answer
  // is complete.
  virtual void OnGone(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

}  // namespace quire::server
