#pragma once

// One call without a stream: reads the body, runs an Evaluation and writes the answer.
//
// Place:      created by openai_service.cc on the exchange's strand.
// Invariants: exactly one answer is sent, after all requests of the call have ended. If the client
//             disconnects, all requests are cancelled at once.
// Threads:    runs on the exchange's strand. `worker` reads bodies and writes answers.
// Lifetime:   keeps itself alive until the answer. The worker outlives the exchange.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/api/call_worker.h"
#include "server/api/evaluation.h"
#include "server/api/generation.h"
#include "server/http/http_message.h"
#include "server/openai/evaluation_bodies.h"
#include "server/openai/unknown_field_log.h"

namespace quire::server {

class EvaluationCall : public std::enable_shared_from_this<EvaluationCall> {
 public:
  struct Head {
    const EvaluationEndpoint* endpoint = nullptr;
    CallInfo info;  // includes the request id
    std::string traceparent;
    HttpHeaders headers;  // added to every answer
    UnknownFieldLog* unknown_fields =
        nullptr;  // outlives the call; null: unknown fields are refused
  };

  EvaluationCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange, Head head,
                 CallWorker* worker);

  // Call once.
  void Begin(std::string body);

 private:
  void Read(const std::string& body);
  absl::StatusOr<const ServedModel*> MakePlan(const std::string& body);
  void OnGone();
  void OnDone(absl::Status status, std::vector<EvaluationResult> results);
  void Answer(absl::StatusOr<std::string> body);

  const HandlerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  Head head_;
  CallWorker* const worker_;
  EvaluationPlan plan_;

  Mutex mutex_;
  std::shared_ptr<Evaluation> evaluation_ ABSL_GUARDED_BY(mutex_);  // set while it can be cancelled
  bool is_client_gone_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::server
