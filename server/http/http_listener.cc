#include "server/http/http_listener.h"

#include <utility>

#include "base/status.h"

namespace quire::server {
namespace {

HttpAnswer AnswerOf(const HttpHandlers& handlers, const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    return {.status = 405,
            .body = "only GET and HEAD are served\n",
            .headers = {{"Allow", "GET, HEAD"}}};
  }
  const auto handler = handlers.find(request.path);
  if (handler == handlers.end()) return {.status = 404, .body = "no such page\n"};
  return handler->second(request);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(
    absl::string_view address, int num_threads, HttpHandlers handlers,
    const CertificateStore* certificates) {
  HttpServerOptions options;
  options.address = std::string(address);
  options.num_threads = num_threads;
  options.keep_alive = false;
  options.certificates = certificates;
  options.requires_client_certificate = false;  // probes have none
  QUIRE_ASSIGN_OR_RETURN(
      auto server,
      HttpServer::Start(std::move(options), [handlers = std::move(handlers)](
                                                const std::shared_ptr<HttpExchange>& exchange) {
        exchange->Answer(AnswerOf(handlers, exchange->request()));
      }));
  return std::unique_ptr<HttpListener>(new HttpListener(std::move(server)));
}

}  // namespace quire::server
