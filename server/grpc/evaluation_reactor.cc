#include "server/grpc/evaluation_reactor.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "quire/v1/text.pb.h"
#include "server/api/evaluation.h"
#include "server/api/evaluation_translator.h"
#include "server/grpc/call_util.h"

namespace quire::server {
namespace {

template <typename Request, typename Response>
class EvaluationReactor final : public grpc::ServerUnaryReactor {
 public:
  EvaluationReactor(const UnaryCall& call, CallWorker* worker) : call_(call), worker_(worker) {
    call_.context.probe->StreamOpened();
  }

  void Begin(std::shared_ptr<EvaluationReactor> self) {
    self_ = std::move(self);
    const absl::Status begun = TryBegin();
    if (!begun.ok()) Close(begun);
  }

  void OnCancel() override {
    std::shared_ptr<Evaluation> evaluation;
    {
      MutexLock lock(&mutex_);
      is_cancelled_ = true;
      evaluation = evaluation_;
    }
    if (evaluation != nullptr) evaluation->Cancel();
  }

  void OnDone() override {
    call_.context.probe->StreamClosed();
    // Destroys the reactor, unless the evaluation is just returning from its last callback.
    const std::shared_ptr<EvaluationReactor> self = std::move(self_);
  }

 private:
  // If this returns an error, Begin closes the RPC with it. After Refuse or Start, the Evaluation
  // closes the RPC.
  absl::Status TryBegin() {
    QUIRE_ASSIGN_OR_RETURN(const Identity caller,
                           Authorize(call_.context, *call_.call, call_.method, call_.scope));
    const CallInfo info = ReadCallInfo(*call_.call, caller, *call_.context.clock);
    const auto evaluation = std::make_shared<Evaluation>(
        call_.context, call_.method, MetadataValue(*call_.call, "traceparent"), info,
        [self = self_](absl::Status status, std::vector<EvaluationResult> results) {
          self->End(std::move(status), std::move(results));
        });
    call_.call->AddInitialMetadata("quire-request-id", evaluation->id());
    std::vector<EvaluationItem> items;
    const absl::StatusOr<const ServedModel*> served = Read(&items);
    if (!served.ok()) {
      evaluation->Refuse(served.status());
      return absl::OkStatus();
    }
    served_ = *served;
    bool is_cancelled = false;
    {
      MutexLock lock(&mutex_);
      evaluation_ = evaluation;
      is_cancelled = is_cancelled_;
    }
    if (is_cancelled) evaluation->Cancel();
    evaluation->Start(*served_, std::move(items));
    return absl::OkStatus();
  }

  absl::StatusOr<const ServedModel*> Read(std::vector<EvaluationItem>* items) {
    QUIRE_RETURN_IF_ERROR(ParseMessage(*call_.request, &request_));
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, call_.context.state->ModelOrError());
    QUIRE_ASSIGN_OR_RETURN(*items, ToEvaluationItems(*served, request_));
    return served;
  }

  void End(absl::Status status, std::vector<EvaluationResult> results) {
    {
      MutexLock lock(&mutex_);
      evaluation_.reset();
    }
    if (!status.ok()) return Close(status);
    // The worker copies its jobs. The shared pointer avoids copying the results.
    const auto shared = std::make_shared<std::vector<EvaluationResult>>(std::move(results));
    const auto write = [self = self_, shared] { self->Write(std::move(*shared)); };
    if (!worker_->Run(write).ok()) write();
  }

  void Write(std::vector<EvaluationResult> results) {
    Response response;
    const absl::Status converted = ToProto(*served_, request_, std::move(results), &response);
    if (converted.ok()) *call_.response = SerializeMessage(response);
    Close(converted);
  }

  void Close(const absl::Status& status) { FinishCall(call_.context, this, call_.method, status); }

  const UnaryCall call_;
  CallWorker* const worker_;
  std::shared_ptr<EvaluationReactor> self_;
  Request request_;
  const ServedModel* served_ = nullptr;

  Mutex mutex_;
  std::shared_ptr<Evaluation> evaluation_
      ABSL_GUARDED_BY(mutex_);  // set while OnCancel may cancel it
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

template <typename Request, typename Response>
grpc::ServerUnaryReactor* StartEvaluation(const UnaryCall& call, CallWorker* worker) {
  auto reactor = std::make_shared<EvaluationReactor<Request, Response>>(call, worker);
  grpc::ServerUnaryReactor* const started = reactor.get();
  reactor->Begin(reactor);
  return started;
}

}  // namespace

grpc::ServerUnaryReactor* StartEmbed(const UnaryCall& call, CallWorker* worker) {
  return StartEvaluation<v1::EmbedRequest, v1::EmbedResponse>(call, worker);
}

grpc::ServerUnaryReactor* StartScore(const UnaryCall& call, CallWorker* worker) {
  return StartEvaluation<v1::ScoreRequest, v1::ScoreResponse>(call, worker);
}

}  // namespace quire::server
