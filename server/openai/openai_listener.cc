#include "server/openai/openai_listener.h"

#include "base/status.h"
#include "server/config/live_config.h"

namespace quire::server {
namespace {

// The listener's threads only read small requests and write responses. Large bodies and generations
// run on other threads.
constexpr int kNumThreads = 2;
// Added to slow_client_timeout, so that the engine cancels the request of a slow client before its
// connection is closed.
constexpr absl::Duration kWriteMargin = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<OpenAiListener>> OpenAiListener::Start(
    const HandlerContext& context, const CertificateStore* certificates,
    ServerIdentity server_identity, std::vector<EndpointTables> other_apis) {
  const std::shared_ptr<const DaemonOptions> options = context.config->options();
  std::unique_ptr<OpenAiListener> listener(
      new OpenAiListener(context, std::move(server_identity), std::move(other_apis)));
  HttpServerOptions server;
  server.address = options->openai.listen;
  server.thread_name = "openai";
  server.num_threads = kNumThreads;
  server.max_connections = options->openai.max_connections;
  server.max_connections_per_address = options->openai.max_connections_per_address;
  server.max_body_bytes = [config = context.config] {
    return config->options()->openai.max_body_bytes;
  };
  server.write_time = [config = context.config] {
    return config->options()->engine.slow_client_timeout + kWriteMargin;
  };
  server.refuse = [service = &listener->service_](Reason reason, absl::string_view message,
                                                  const HttpRequest& request) {
    return service->RejectBeforeRead(reason, message, request);
  };
  server.is_probe = &OpenAiService::IsProbe;
  server.check_before_body = [service = &listener->service_](const HttpRequest& head) {
    return service->CheckBeforeBody(head);
  };
  server.certificates = certificates;
  QUIRE_ASSIGN_OR_RETURN(
      listener->server_,
      HttpServer::Start(std::move(server), [service = &listener->service_](
                                               const std::shared_ptr<HttpExchange>& exchange) {
        service->Handle(exchange);
      }));
  return listener;
}

}  // namespace quire::server
