#pragma once

// The OpenAI-compatible API: /v1/models, /v1/completions, /v1/chat/completions, /health, and what
// evaluation_bodies.h lists.
//
//   HttpServer -> OpenAiService::Handle -> OpenAiCall -> Generation: no second way to the engine
//                                       -> EvaluationCall -> Evaluation
//
// Place:      the handler of the HttpServer that openai.listen names.
// Invariants: an endpoint or a field that this build lacks answers with an error object. A request
//             whose Origin is not allowed is refused before anything is read of it, so that a page
//             of another site cannot use a model on this machine; nor one that is only guarded by
//             being on loopback, by a name that leads here (http_host.h).
// Threads:    Handle on the threads of the server, which do nothing long: see OpenAiCall.
// Lifetime:   outlives the server; the context's objects outlive it.

#include <atomic>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/auth/authenticator.h"
#include "server/http/http_message.h"

namespace quire::server {

class OpenAiService {
 public:
  explicit OpenAiService(const HandlerContext& context);

  void Handle(const std::shared_ptr<HttpExchange>& exchange);

  // What refuses a request whose body has not been read: its origin, or its caller.
  std::optional<HttpAnswer> Refusal(const HttpRequest& head) const;
  // What the server itself refuses, such as a body that is too large, for the page that asks.
  HttpAnswer RefuseUnread(Reason reason, absl::string_view message,
                          const HttpRequest& request) const;
  // Whether the request is answered though there is no place for its connection.
  static bool IsProbe(const HttpRequest& head) { return head.path == "/health"; }

  // The status page of the operators' listener at this port may call too, from the host that it was
  // asked by itself.
  void AllowStatusPage(int port) { status_page_port_.store(port); }

 private:
  bool IsAllowed(const HttpRequest& request, absl::string_view origin) const;
  HttpHeaders OriginHeaders(const HttpRequest& request) const;
  std::optional<HttpAnswer> WrongPlace(const HttpRequest& head) const;
  HttpAnswer Preflight(const HttpRequest& request, HttpHeaders headers) const;
  HttpAnswer Get(const HttpRequest& request) const;
  HttpAnswer Refuse(const HttpRequest& request, const absl::Status& status) const;
  HttpAnswer Models(const HttpRequest& request) const;
  void Post(const std::shared_ptr<HttpExchange>& exchange, HttpHeaders headers);
  absl::StatusOr<Identity> Authorize(const HttpRequest& request) const;

  const HandlerContext context_;
  bool checks_host_ = false;
  std::atomic<int> status_page_port_{0};  // 0: none
  CallWorker worker_;
};

}  // namespace quire::server
