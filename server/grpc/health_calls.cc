#include "server/grpc/health_calls.h"

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "server/grpc/call_util.h"

namespace quire::server {

struct HealthCalls::Call {
  explicit Call(std::shared_ptr<grpc::Channel> channel) : stub(std::move(channel)) {}

  grpc::GenericStub stub;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  bool is_answered = false;  // guarded by mutex_
};

HealthCalls::HealthCalls() = default;
HealthCalls::~HealthCalls() {
  End();
}

void HealthCalls::Begin(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout,
                        Answer answer) {
  DestroyAnswered();
  calls_.push_back(std::make_unique<Call>(std::move(channel)));
  Call* const call = calls_.back().get();
  const grpc::Slice empty("");  // the serialized request for "" has no bytes
  call->request = grpc::ByteBuffer(&empty, 1);
  call->context.set_deadline(ToGrpcTime(MonotonicNow() + timeout));
  call->stub.UnaryCall(&call->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                       &call->request, &call->response,
                       [this, call, answer = std::move(answer)](grpc::Status status) {
                         answer(status);
                         MutexLock lock(&mutex_);
                         call->is_answered = true;
                         answered_.NotifyAll();
                       });
}

void HealthCalls::DestroyAnswered() {
  std::list<std::unique_ptr<Call>> answered;  // destroyed after the lock is released
  MutexLock lock(&mutex_);
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    if ((*call)->is_answered) answered.splice(answered.end(), calls_, call);
  }
}

void HealthCalls::End() {
  for (const auto& call : calls_) call->context.TryCancel();
  {
    MutexLock lock(&mutex_);
    const auto is_answered = [](const auto& call) { return call->is_answered; };
    while (!std::all_of(calls_.begin(), calls_.end(), is_answered)) answered_.Wait(&mutex_);
  }
  calls_.clear();
}

}  // namespace quire::server
