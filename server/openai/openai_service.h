#pragma once

// The APIs over HTTP: the endpoints of generation_endpoint.h, evaluation_bodies.h and
// info_endpoint.h, and the endpoints of server/dialects.
//
//   HttpServer -> OpenAiService::Handle -> OpenAiCall -> Generation
//                                       -> EvaluationCall -> Evaluation
//
// Place:      the handler of the HttpServer at openai.listen.
// Invariants: a request with an unknown path or an unsupported field is answered with an error
//             object. A request with a forbidden Origin is refused before its body is read, so that
//             a page of another site cannot use a local model. Without authentication on a loopback
//             address, a request with a foreign Host is refused too (DNS rebinding; http_host.h).
// Threads:    Handle runs on the server's threads and does no long work; see OpenAiCall.
// Lifetime:   outlives the server; the context's objects outlive it.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/auth/authenticator.h"
#include "server/http/http_message.h"
#include "server/openai/info_endpoint.h"
#include "server/openai/unknown_field_log.h"

namespace quire::server {

class OpenAiService {
 public:
  // `other_apis` are the endpoints of other APIs.
  OpenAiService(const HandlerContext& context, ServerIdentity server,
                std::vector<EndpointTables> other_apis);

  void Handle(const std::shared_ptr<HttpExchange>& exchange);

  // Checks the head of a request that has a body, before the body is read. Returns the error that
  // Handle would send. Returns 413 if the endpoint needs no token and the body has more than 512
  // bytes or no Content-Length.
  std::optional<HttpAnswer> CheckBeforeBody(const HttpRequest& head) const;
  // Returns an error of the HTTP server, such as a body that is too large, with the origin headers.
  HttpAnswer RejectBeforeRead(Reason reason, absl::string_view message,
                              const HttpRequest& request) const;
  // Returns true for health probes, which are answered even on a connection over the limit
  // (http_server.h).
  static bool IsProbe(const HttpRequest& head) {
    return head.path == "/health" || head.path == "/ping";
  }

  // Allows the status page of the operators' listener at this port as origin, if the page has the
  // same host.
  void AllowStatusPage(int port) { status_page_port_.store(port); }

 private:
  const GenerationEndpoint* FindGeneration(absl::string_view path) const;
  const EvaluationEndpoint* FindEvaluation(absl::string_view path) const;
  const InfoEndpoint* FindInfo(absl::string_view path) const;
  const RefusedPath* FindRefused(absl::string_view path) const;
  // Returns the name of a generation or evaluation endpoint for metrics and logs, or "" for other
  // paths.
  absl::string_view MethodName(absl::string_view path) const;
  WriteErrorBody ErrorWriter(absl::string_view path) const;
  bool IsAllowed(const HttpRequest& request, absl::string_view origin) const;
  HttpHeaders OriginHeaders(const HttpRequest& request) const;
  std::optional<HttpAnswer> CheckHostAndOrigin(const HttpRequest& head) const;
  // Returns an error if the path does not exist, or if the method or the caller is not allowed.
  // Otherwise sets `caller`, unless the request needs no token.
  std::optional<HttpAnswer> CheckCall(const HttpRequest& head,
                                      std::optional<Identity>* caller) const;
  HttpAnswer Preflight(const HttpRequest& request, HttpHeaders headers) const;
  HttpAnswer AnswerInfo(const HttpRequest& request) const;
  HttpAnswer UnknownEndpoint(absl::string_view path) const;
  HttpAnswer Refuse(const HttpRequest& request, const absl::Status& status) const;
  void Post(const std::shared_ptr<HttpExchange>& exchange, Identity caller, HttpHeaders headers);
  absl::StatusOr<Identity> Authorize(const HttpRequest& request, Scope scope) const;

  const HandlerContext context_;
  const ServerIdentity server_;
  std::vector<EndpointTables> tables_;  // constant; the last table is OpenAI's
  std::string openapi_;                 // constant; the body of /openapi.json
  bool checks_host_ = false;
  std::atomic<int> status_page_port_{0};  // 0: no status page
  UnknownFieldLog unknown_fields_;
  CallWorker worker_;
};

}  // namespace quire::server
