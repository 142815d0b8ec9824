#pragma once

// The OpenAI-compatible listener: an HTTP server and its service.
//
// Place:      created by the daemon if openai.enabled is set.
// Invariants: has its own threads and connections, so that probes on the operators' listener never
//             wait for it.
// Threads:    one thread at a time calls Start, Shutdown and the destructor.
// Lifetime:   the context's objects and the certificates outlive it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/api/generation.h"
#include "server/auth/certificate_store.h"
#include "server/http/http_server.h"
#include "server/openai/openai_service.h"

namespace quire::server {

class OpenAiListener {
 public:
  // Listens on the configured address. `certificates` is null without TLS. `other_apis` are the
  // endpoints of other APIs. Returns the errors of HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<OpenAiListener>> Start(
      const HandlerContext& context, const CertificateStore* certificates,
      ServerIdentity server = {}, std::vector<EndpointTables> other_apis = {});

  const std::string& address() const { return server_->address(); }
  // See OpenAiService.
  void AllowStatusPage(int port) { service_.AllowStatusPage(port); }
  // See HttpServer.
  void CheckReachable() { server_->CheckReachable(); }
  bool is_reachable() const { return server_->is_reachable(); }
  // See HttpServer::Shutdown.
  void Shutdown(absl::Time deadline) { server_->Shutdown(deadline); }

 private:
  OpenAiListener(const HandlerContext& context, ServerIdentity server,
                 std::vector<EndpointTables> other_apis)
      : service_(context, std::move(server), std::move(other_apis)) {}

  OpenAiService service_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace quire::server
