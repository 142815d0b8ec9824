#include "server/openai/evaluation_call.h"

#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "server/api/status_mapping.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

// Returns the result of `work`, or INTERNAL if a library throws.
template <typename Work>
auto CatchExceptions(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

EvaluationCall::EvaluationCall(const HandlerContext& context,
                               std::shared_ptr<HttpExchange> exchange, Head head,
                               CallWorker* worker)
    : context_(context), exchange_(std::move(exchange)), head_(std::move(head)), worker_(worker) {}

void EvaluationCall::Begin(std::string body) {
  const std::shared_ptr<EvaluationCall> self = shared_from_this();
  exchange_->OnGone([self] { self->OnGone(); });
  // Jobs are copied, so share the body instead of copying it.
  const auto shared_body = std::make_shared<const std::string>(std::move(body));
  const absl::Status status = worker_->Run([self, shared_body] { self->Read(*shared_body); });
  if (status.ok()) return;
  context_.probe->CountRefused(ToWireError(status).reason);
  Answer(status);
}

void EvaluationCall::Read(const std::string& body) {
  const std::shared_ptr<EvaluationCall> self = shared_from_this();
  const auto evaluation = std::make_shared<Evaluation>(
      context_, head_.endpoint->method, head_.traceparent, head_.info,
      [self](absl::Status status, std::vector<EvaluationResult> results) {
        self->OnDone(std::move(status), std::move(results));
      });
  const absl::StatusOr<const ServedModel*> served = CatchExceptions([&] { return MakePlan(body); });
  if (!served.ok()) return evaluation->Refuse(served.status());
  if (plan_.items.empty()) return Answer(CatchExceptions([&] { return plan_.answer({}); }));
  bool is_gone = false;
  {
    MutexLock lock(&mutex_);
    evaluation_ = evaluation;
    is_gone = is_client_gone_;
  }
  if (is_gone) evaluation->Cancel();
  evaluation->Start(**served, std::move(plan_.items));
}

absl::StatusOr<const ServedModel*> EvaluationCall::MakePlan(const std::string& body) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
  const std::shared_ptr<const DaemonOptions> options = context_.config->options();
  const text::jinja::JsonLimits& json = options->chat.rendering.json_limits;
  OpenAiLimits limits = {.max_json_nodes = json.max_nodes, .max_json_depth = json.max_depth};
  if (!options->openai.refuses_unknown_fields && head_.unknown_fields != nullptr) {
    limits.on_unknown_field = [this](absl::string_view path) { head_.unknown_fields->Warn(path); };
  }
  QUIRE_ASSIGN_OR_RETURN(plan_,
                         head_.endpoint->read({.served = *served,
                                               .limits = limits,
                                               .wall_now = context_.clock->WallNow(),
                                               .request_id = head_.info.metadata_request_id,
                                               .max_input_bytes = options->engine.max_input_bytes},
                                              body));
  return served;
}

void EvaluationCall::OnGone() {
  std::shared_ptr<Evaluation> evaluation;
  {
    MutexLock lock(&mutex_);
    is_client_gone_ = true;
    evaluation = evaluation_;
  }
  if (evaluation != nullptr) evaluation->Cancel();
}

void EvaluationCall::OnDone(absl::Status status, std::vector<EvaluationResult> results) {
  {
    MutexLock lock(&mutex_);
    evaluation_.reset();
  }
  if (!status.ok()) return Answer(status);
  const absl::Status passed_on = CatchExceptions([&]() -> absl::Status {
    const auto shared = std::make_shared<std::vector<EvaluationResult>>(std::move(results));
    const auto write = [self = shared_from_this(), shared] {
      self->Answer(CatchExceptions([&] { return self->plan_.answer(std::move(*shared)); }));
    };
    if (!worker_->Run(write).ok()) write();
    return absl::OkStatus();
  });
  if (!passed_on.ok()) Answer(passed_on);
}

void EvaluationCall::Answer(absl::StatusOr<std::string> body) {
  HttpAnswer answer;
  const absl::Status status = SanitizeInternalError(body.status());
  context_.probe->CountRpc(head_.endpoint->method, status.code());
  if (body.ok()) {
    answer = {.content_type = "application/json", .body = *std::move(body)};
  } else {
    answer = OpenAiError(status, {}, head_.endpoint->write_error);
  }
  const std::shared_ptr<EvaluationCall> self = shared_from_this();
  exchange_->Post([self, answer = std::move(answer)]() mutable {
    {
      MutexLock lock(&self->mutex_);
      if (self->is_client_gone_) return;
    }
    for (auto& header : self->head_.headers) answer.headers.push_back(std::move(header));
    self->exchange_->Answer(std::move(answer));
  });
}

}  // namespace quire::server
