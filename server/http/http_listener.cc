#include "server/http/http_listener.h"

#include <civetweb.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace quire::server {
namespace {

const char* StatusText(int status) {
  switch (status) {
    case 200: return "OK";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

// CivetWeb's own complaints, such as a port that is taken.
int LogMessage(const mg_connection*, const char* message) {
  log::Debug("http", "civetweb", {{"text", message}});
  return 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(absl::string_view address,
                                                                  int num_threads,
                                                                  HttpHandlers handlers) {
  std::unique_ptr<HttpListener> listener(new HttpListener(std::move(handlers)));
  const std::string port = std::string(address);
  const std::string threads = absl::StrCat(num_threads);
  const char* options[] = {"listening_ports",    port.c_str(), "num_threads", threads.c_str(),
                           "request_timeout_ms", "10000",      nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = &LogMessage;
  listener->context_ = mg_start(&callbacks, listener.get(), options);
  if (listener->context_ == nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("address ", address, " is in use or cannot be bound"));
  }
  mg_server_port bound = {};
  mg_get_server_ports(listener->context_, 1, &bound);
  listener->address_ = absl::StrCat(address.substr(0, address.rfind(':') + 1), bound.port);
  mg_set_request_handler(listener->context_, "/", &HandleRequest, listener.get());
  return listener;
}

HttpListener::~HttpListener() {
  if (context_ != nullptr) mg_stop(context_);
}

HttpAnswer HttpListener::Answer(absl::string_view method, const std::string& path) const {
  if (method != "GET" && method != "HEAD") {
    return {.status = 405, .body = "only GET and HEAD are served\n"};
  }
  const auto handler = handlers_.find(path);
  if (handler == handlers_.end()) return {.status = 404, .body = "no such page\n"};
  return handler->second();
}

int HttpListener::HandleRequest(mg_connection* connection, void* listener) {
  const mg_request_info* request = mg_get_request_info(connection);
  const absl::string_view method = request->request_method;
  const HttpAnswer answer =
      static_cast<HttpListener*>(listener)->Answer(method, request->local_uri);
  const std::string head =
      absl::StrCat("HTTP/1.1 ", answer.status, " ", StatusText(answer.status),
                   "\r\nContent-Type: ", answer.content_type,
                   "\r\nContent-Length: ", answer.body.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
  // A failed write means that the peer has gone; there is nobody to tell.
  mg_write(connection, head.data(), head.size());
  if (method != "HEAD") mg_write(connection, answer.body.data(), answer.body.size());
  return answer.status;
}

}  // namespace quire::server
