#include "server/http/http_listener.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/string_view.h"

namespace quire::server {
namespace {

constexpr char kUnknownPage[] =
    "no such page; this port (server.http.listen) has /metrics, /livez, /readyz, /startupz and "
    "/status.json, and the OpenAI API is at openai.listen\n";

HttpAnswer AnswerOf(const HttpHandlers& handlers, const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    return {.status = 405,
            .body = "only GET and HEAD are served\n",
            .headers = {{"Allow", "GET, HEAD"}}};
  }
  const auto handler = handlers.find(request.path);
  if (handler == handlers.end()) return {.status = 404, .body = kUnknownPage};
  return handler->second(request);
}

// Returns true for paths that supervisors, load balancers and scrapers request.
bool IsProbe(const HttpRequest& head) {
  constexpr absl::string_view kProbes[] = {"/livez", "/readyz", "/startupz", "/metrics"};
  return std::find(std::begin(kProbes), std::end(kProbes), head.path) != std::end(kProbes);
}

// No handler of this listener accepts a body, so a request with one is refused before it is read.
std::optional<HttpAnswer> RefuseBody(const HttpRequest&) {
  return HttpAnswer{.status = 413, .body = "the request has a body: send it without one\n"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpListener(
    const HttpListenerOptions& options, HttpHandlers handlers,
    const CertificateStore* certificates) {
  HttpServerOptions server;
  server.address = options.address;
  server.num_threads = options.num_threads;
  server.max_connections = options.max_connections;
  server.max_connections_per_address = options.max_connections_per_address;
  server.keep_alive = false;
  server.check_before_body = &RefuseBody;
  server.is_probe = &IsProbe;
  server.certificates = certificates;
  server.requires_client_certificate = false;  // probes have none
  return HttpServer::Start(std::move(server), [handlers = std::move(handlers)](
                                                  const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(AnswerOf(handlers, exchange->request()));
  });
}

}  // namespace quire::server
