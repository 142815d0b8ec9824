#pragma once

// One HTTP request and how its answer leaves: what handlers see of a connection.
//
//   handler(exchange): exchange->Answer({...}), now or later
//   or:                exchange->BeginStream({...}); Write(bytes, next) ...; EndStream(true)
//
// Place:      between HttpServer, which implements it, and the handlers of operators and of
//             OpenAI's API.
// Invariants: one Answer or one stream for each exchange; one Write under way at a time. When the
//             peer has gone, whatever is sent is dropped, no further callback runs but the one of
//             OnGone.
// Threads:    Post from any; everything else, and every callback, on the exchange's own sequence,
//             where one function runs at a time.
// Lifetime:   shared; the server waits for all of them before it ends.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // in upper case, as it came
  std::string path;     // without query, percent signs decoded
  std::string query;    // behind '?', as it came
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string certificate_name;  // common name of a client certificate that TLS has verified

  // The first value of a header, or ""; `name` in lower case.
  absl::string_view Header(absl::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  HttpHeaders headers = {};  // beside those that every answer has
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Valid until the exchange has ended.
  virtual const HttpRequest& request() const = 0;
  // Moves the body out, which may be large and need not live as long as the exchange.
  virtual std::string TakeBody() = 0;

  // Runs `work` on the sequence of this exchange.
  virtual void Post(std::function<void()> work) = 0;

  virtual void Answer(HttpAnswer answer) = 0;

  // The head of an answer whose body comes in pieces; it leaves with the first of them.
  virtual void BeginStream(HttpAnswer head) = 0;
  virtual void Write(std::string bytes, std::function<void()> on_written) = 0;
  // `whole` false: the connection closes without the mark of a complete body.
  virtual void EndStream(bool whole) = 0;

  // Runs once if the peer goes away, or does not read in time, before the answer is complete.
  virtual void OnGone(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

}  // namespace quire::server
