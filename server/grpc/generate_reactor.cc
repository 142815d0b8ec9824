#include "server/grpc/generate_reactor.h"

#include <grpcpp/server_context.h>

#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "quire/v1/generation.pb.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"

namespace quire::server {
namespace {

class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GenerateReactor(const HandlerContext& context, grpc::CallbackServerContext* call,
                  GenerateFormat format)
      : context_(context), call_(call), format_(std::move(format)) {
    context_.probe->StreamOpened();
  }

  void Begin(const grpc::ByteBuffer& bytes, std::shared_ptr<GenerateReactor> self) {
    self_ = self;
    absl::StatusOr<std::unique_ptr<Generation>> request = Accept(bytes);
    if (!request.ok()) return End(request.status());
    call_->AddInitialMetadata("quire-request-id", (*request)->id());
    // The client may have gone while the request was being accepted.
    bool cancelled = false;
    {
      MutexLock lock(&mutex_);
      request_ = *std::move(request);
      cancelled = cancelled_;
    }
    StartSendInitialMetadata();
    if (cancelled) request_->Cancel();
    // If the client stops reading, a pending write completes only after the call is cancelled.
    // OnWriteDone then cancels the request.
    request_->SetAbandonedCallback([self] { self->call_->TryCancel(); });
    request_->SetReadyCallback([self] { self->Pump(); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      peer_gone_ = true;
      request_->Cancel();
    }
    {
      MutexLock lock(&mutex_);
      pumping_ = false;
    }
    Pump();
  }

  void OnCancel() override {
    std::shared_ptr<Generation> request;
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      if (!ended_) request = request_;
    }
    // Called without the lock: the engine may end the request and call Pump before Cancel returns.
    if (request != nullptr) request->Cancel();
  }

  void OnDone() override {
    std::shared_ptr<Generation> request;
    {
      MutexLock lock(&mutex_);
      request = std::move(request_);
    }
    context_.probe->StreamClosed();
    context_.probe->CountRpc(format_.method, code_);
    // Destroys the reactor, unless a callback of the stream is just returning from Pump.
    const std::shared_ptr<GenerateReactor> self = std::move(self_);
  }

 private:
  absl::StatusOr<std::unique_ptr<Generation>> Accept(const grpc::ByteBuffer& bytes) {
    const absl::StatusOr<Identity> caller =
        Authorize(context_, *call_, format_.method, Scope::kGenerate);
    if (!caller.ok()) {
      context_.probe->CountRefused(ToWireError(caller.status()).reason);
      return caller.status();
    }
    const CallInfo info = ReadCallInfo(*call_, *caller, *context_.clock);
    const std::string traceparent = MetadataValue(*call_, "traceparent");
    v1::GenerateRequest message;
    const absl::Status parsed = format_.parse(bytes, &message);
    if (!parsed.ok()) {
      return Generation::Refuse(context_, format_.method, traceparent, message, info, parsed);
    }
    return Generation::Start(context_, format_.method, traceparent, message, info);
  }

  // Sends the next message or ends the call, unless another thread is doing so. That thread checks
  // `pump_again_` before it stops, so no event is lost.
  void Pump() {
    {
      MutexLock lock(&mutex_);
      if (pumping_ || ended_) {
        pump_again_ = true;
        return;
      }
      pumping_ = true;
    }
    for (;;) {
      v1::GenerateResponse message;
      if (request_->TakeResponse(&message)) {
        if (peer_gone_) continue;  // the engine is about to finish the request
        std::optional<grpc::ByteBuffer> written = format_.write(&message);
        if (!written) continue;
        outgoing_ = *std::move(written);
        StartWrite(&outgoing_);
        return;
      }
      if (request_->finished()) {
        const absl::Status status = request_->Close();
        if (!status.ok()) AddUsageTrailer(call_, request_->usage());
        return End(status);
      }
      MutexLock lock(&mutex_);
      if (!pump_again_) {
        pumping_ = false;
        return;
      }
      pump_again_ = false;
    }
  }

  void End(const absl::Status& status) {
    grpc::Status answer = ToGrpcStatus(format_.translate_fields(status));
    code_ = static_cast<absl::StatusCode>(answer.error_code());
    {
      MutexLock lock(&mutex_);
      ended_ = true;
    }
    Finish(std::move(answer));
  }

  const HandlerContext context_;
  grpc::CallbackServerContext* const call_;
  const GenerateFormat format_;
  std::shared_ptr<GenerateReactor> self_;
  absl::StatusCode code_ = absl::StatusCode::kOk;

  // Used by the thread in Pump.
  grpc::ByteBuffer outgoing_;
  bool peer_gone_ = false;

  Mutex mutex_;
  // Set before the first Pump and reset after the last one, so Pump reads it without the lock.
  std::shared_ptr<Generation> request_;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool pump_again_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

GenerateFormat MakeGenerateFormat() {
  return {.method = "Generate",
          .parse = [](const grpc::ByteBuffer& bytes,
                      v1::GenerateRequest* request) { return ParseMessage(bytes, request); },
          .write = [](v1::GenerateResponse* event) -> std::optional<grpc::ByteBuffer> {
            return SerializeMessage(*event);
          },
          .translate_fields = [](const absl::Status& status) { return status; }};
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(const HandlerContext& context,
                                                          grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer& request,
                                                          GenerateFormat format) {
  auto reactor = std::make_shared<GenerateReactor>(context, call, std::move(format));
  reactor->Begin(request, reactor);
  return reactor.get();
}

}  // namespace quire::server
