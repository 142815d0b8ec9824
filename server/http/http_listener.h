#pragma once

// A small HTTP/1.1 server for GET requests: CivetWeb behind values and functions.
//
// Place:      made by the daemon; handlers come from ops_handlers.h.
// Invariants: other methods than GET and HEAD answer 405, unknown paths 404.
// Threads:    handlers run on the listener's own threads, several at once; a connection holds one.
// Lifetime:   what the handlers use outlives it.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct mg_connection;
struct mg_context;

namespace quire::server {

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Path -> answer. Must not throw.
using HttpHandlers = std::map<std::string, std::function<HttpAnswer()>>;

class HttpListener {
 public:
  // `address` is host:port; port 0 takes any free one. ALREADY_EXISTS when the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(absl::string_view address,
                                                             int num_threads,
                                                             HttpHandlers handlers);
  // Closes the port and waits for running handlers.
  ~HttpListener();

  // With the port that port 0 became.
  const std::string& address() const { return address_; }

 private:
  explicit HttpListener(HttpHandlers handlers) : handlers_(std::move(handlers)) {}

  static int HandleRequest(mg_connection* connection, void* listener);
  HttpAnswer Answer(absl::string_view method, const std::string& path) const;

  const HttpHandlers handlers_;
  std::string address_;
  mg_context* context_ = nullptr;
};

}  // namespace quire::server
