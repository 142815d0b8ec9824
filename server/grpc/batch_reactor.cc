// StartBatchGenerate of generate_reactor.h: many generations over one stream. Commands are read one
// at a time; the events of the items are written in turn, one message each, so that no item
// starves.

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/mutex.h"
#include "quire/v1/generation.pb.h"
#include "server/api/response_translator.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"
#include "server/grpc/generate_reactor.h"

namespace quire::server {
namespace {

// Refusals that wait to be written; beyond it no further command is read.
constexpr std::size_t kMaxWaitingErrors = 64;
// How soon a stream notices that its token was revoked.
constexpr absl::Duration kLookInterval = absl::Milliseconds(250);

class BatchReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  BatchReactor(const HandlerContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call) {
    context_.probe->StreamOpened();
  }

  void Begin(std::shared_ptr<BatchReactor> self) {
    self_ = std::move(self);
    seen_rules_ = context_.authenticator->version();
    const absl::StatusOr<Identity> caller =
        Authorize(context_, *call_, "BatchGenerate", Scope::kGenerate);
    if (!caller.ok()) return Refuse(caller.status());
    principal_ = caller->principal;
    LookLater(self_);
    ReadNext();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { Abandon(); }
  void OnDone() override;

 private:
  struct Item {
    std::unique_ptr<Generation> request;
    bool has_news = false;  // since its stream was last found empty
  };
  using Items = std::map<std::string, std::shared_ptr<Item>>;

  void Refuse(const absl::Status& status);
  absl::Status Execute(const v1::BatchGenerateRequest& message);
  void StartItem(const v1::GenerateRequest& message);
  void QueueError(const std::string& id, const absl::Status& status);
  void LookLater(const std::weak_ptr<BatchReactor>& self);
  void LookAtCaller(const std::shared_ptr<BatchReactor>& self);
  void Revoke();
  void ReadNext();
  void Abandon();
  void Pump();
  bool FillNext();
  bool TakeEvent(Item& item);
  static grpc::ByteBuffer EndOf(const Item& item, const absl::Status& status);
  std::shared_ptr<Item> NextItem() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HandlerContext context_;
  grpc::CallbackServerContext* const call_;
  std::shared_ptr<BatchReactor> self_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string principal_;
  std::uint64_t seen_rules_ = 0;  // version of the authenticator's; of the thread that looks
  grpc::Alarm alarm_;
  grpc::ByteBuffer incoming_;  // of the read under way
  grpc::ByteBuffer outgoing_;  // of the pumping thread
  bool peer_gone_ = false;     // of the pumping thread

  Mutex mutex_;
  Items items_ ABSL_GUARDED_BY(mutex_);
  std::string last_served_ ABSL_GUARDED_BY(mutex_);  // id; the turn goes to the next one
  std::deque<grpc::ByteBuffer> errors_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_starting_read_ ABSL_GUARDED_BY(mutex_) = false;  // after Finish none may begin
  // A command may add an item yet, though a revoked token says that no more are read.
  bool is_executing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool again_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

void FillError(const std::string& id, const absl::Status& status, const engine::Usage& usage,
               v1::BatchGenerateResponse* response) {
  const WireError wire = ToWireError(status);
  response->set_request_id(id);
  v1::ItemError* error = response->mutable_error();
  error->set_code(static_cast<int>(wire.code));
  error->set_message(wire.message);
  error->set_reason(ReasonName(wire.reason));
  for (const auto& [key, value] : wire.metadata) (*error->mutable_metadata())[key] = value;
  if (wire.retry_delay) ToProto(*wire.retry_delay, error->mutable_retry_delay());
  ToProto(usage, error->mutable_usage());
}

void BatchReactor::OnReadDone(bool ok) {
  absl::Status status;
  v1::BatchGenerateRequest message;
  {
    MutexLock lock(&mutex_);
    is_executing_ = true;
  }
  if (ok) status = ParseMessage(incoming_, &message);
  if (ok && status.ok()) status = Execute(message);
  {
    MutexLock lock(&mutex_);
    reading_ = is_executing_ = false;
    // Half-closed, or the stream is gone: running items go on, unless OnCancel ends them.
    if (!ok || !status.ok()) reads_done_ = true;
    failure_.Update(status);
  }
  if (!status.ok()) Abandon();
  ReadNext();
  Pump();
}

void BatchReactor::OnWriteDone(bool ok) {
  if (!ok) {
    peer_gone_ = true;
    Abandon();
  }
  {
    MutexLock lock(&mutex_);
    pumping_ = false;
  }
  ReadNext();
  Pump();
}

void BatchReactor::OnDone() {
  {
    MutexLock lock(&mutex_);
    items_.clear();
  }
  context_.probe->StreamClosed();
  context_.probe->CountRpc("BatchGenerate", code_);
  // Drops the reactor, unless a callback of some stream is just returning from Pump.
  const std::shared_ptr<BatchReactor> self = std::move(self_);
}

// Ends the call before anything was read.
void BatchReactor::Refuse(const absl::Status& status) {
  const grpc::Status answer = ToGrpcStatus(status);
  code_ = static_cast<absl::StatusCode>(answer.error_code());
  {
    MutexLock lock(&mutex_);
    reads_done_ = true;
    ended_ = true;
  }
  Finish(answer);
}

// Runs a command. An error ends the whole stream; what concerns one item becomes its ItemError.
absl::Status BatchReactor::Execute(const v1::BatchGenerateRequest& message) {
  if (message.has_generate()) {
    StartItem(message.generate());
    return absl::OkStatus();
  }
  if (message.command_case() != v1::BatchGenerateRequest::kCancelRequestId) {
    return WithReason(absl::InvalidArgumentError("batch command is missing"),
                      Reason::kPromptMissing, {{"field", "command"}});
  }
  std::shared_ptr<Item> item;
  {
    MutexLock lock(&mutex_);
    const auto found = items_.find(message.cancel_request_id());
    if (found != items_.end()) item = found->second;
  }
  if (item != nullptr) item->request->Cancel();
  return absl::OkStatus();
}

void BatchReactor::StartItem(const v1::GenerateRequest& message) {
  const std::string id = message.request_id().substr(0, 128);
  bool in_use = false;
  {
    MutexLock lock(&mutex_);
    in_use = items_.contains(id);
  }
  if (in_use) {
    context_.probe->CountRefused(Reason::kRequestIdInUse);
    return QueueError(id, WithReason(absl::AlreadyExistsError(absl::StrCat(
                                         "request id \"", id, "\" is in use on this stream")),
                                     Reason::kRequestIdInUse));
  }
  // Again for each item: the stream may outlive the token that opened it.
  const absl::StatusOr<Identity> caller =
      Authorize(context_, *call_, "BatchGenerate", Scope::kGenerate);
  if (!caller.ok()) {
    context_.probe->CountRefused(ToWireError(caller.status()).reason);
    return QueueError(id, caller.status());
  }
  CallInfo info = ReadCallInfo(*call_, *caller, *context_.clock);
  info.request_id_required = true;
  auto request = Generation::Start(context_, "BatchGenerate", MetadataValue(*call_, "traceparent"),
                                   message, info);
  if (!request.ok()) return QueueError(id, request.status());
  auto item = std::make_shared<Item>();
  item->request = *std::move(request);
  bool abandoned = false;
  {
    MutexLock lock(&mutex_);
    items_.emplace(id, item);
    abandoned = abandoned_;
  }
  if (abandoned) item->request->Cancel();
  // A client that reads nothing of one answer for so long holds up all of them.
  item->request->SetAbandonedCallback([self = self_] { self->call_->TryCancel(); });
  // The stream keeps its callback, and the callback both ends: OnDone breaks the circle. The item
  // is held weakly, or an item that ended would hold itself.
  item->request->SetReadyCallback([self = self_, weak_item = std::weak_ptr<Item>(item)] {
    const std::shared_ptr<Item> news_of = weak_item.lock();
    if (news_of == nullptr) return;
    {
      MutexLock lock(&self->mutex_);
      news_of->has_news = true;
    }
    self->Pump();
  });
}

void BatchReactor::QueueError(const std::string& id, const absl::Status& status) {
  v1::BatchGenerateResponse response;
  FillError(id, status, engine::Usage(), &response);
  MutexLock lock(&mutex_);
  errors_.push_back(SerializeMessage(response));
}

// A stream whose client says nothing is not to outlive its token.
void BatchReactor::LookLater(const std::weak_ptr<BatchReactor>& self) {
  alarm_.Set(ToGrpcTime(MonotonicNow() + kLookInterval), [self](bool) {
    if (const std::shared_ptr<BatchReactor> alive = self.lock()) alive->LookAtCaller(alive);
  });
}

void BatchReactor::LookAtCaller(const std::shared_ptr<BatchReactor>& self) {
  bool holds = true;
  {
    MutexLock lock(&mutex_);
    // Until it ends, and it cannot under this lock, the daemon waits for the stream and keeps the
    // authenticator.
    if (ended_) return;
    const std::uint64_t rules = context_.authenticator->version();
    if (rules != seen_rules_) {
      holds = context_.authenticator->IsStillAllowed(principal_, Scope::kGenerate);
    }
    seen_rules_ = rules;
  }
  if (!holds) return Revoke();
  LookLater(self);
}

// Ends all items, then the stream.
void BatchReactor::Revoke() {
  std::vector<std::shared_ptr<Item>> items;
  {
    MutexLock lock(&mutex_);
    reads_done_ = true;
    failure_.Update(RevokedError());
    for (const auto& [id, item] : items_) items.push_back(item);
  }
  for (const auto& item : items) item->request->Revoke();
  Pump();
}

void BatchReactor::ReadNext() {
  {
    MutexLock lock(&mutex_);
    if (reading_ || reads_done_ || errors_.size() >= kMaxWaitingErrors) return;
    reading_ = true;
    is_starting_read_ = true;
  }
  // The read may end, and all else with it, before StartRead returns.
  const std::shared_ptr<BatchReactor> self = self_;
  StartRead(&incoming_);
  {
    MutexLock lock(&mutex_);
    is_starting_read_ = false;
    if (!reads_done_) return;
  }
  Pump();
}

// Cancels all items. Their ends are still awaited, so that nothing is live when the stream ends.
void BatchReactor::Abandon() {
  std::vector<std::shared_ptr<Item>> items;
  {
    MutexLock lock(&mutex_);
    abandoned_ = true;
    for (const auto& [id, item] : items_) items.push_back(item);
  }
  for (const auto& item : items) item->request->Cancel();
}

// As GenerateReactor::Pump: one thread at a time, and it looks again before it stops.
void BatchReactor::Pump() {
  {
    MutexLock lock(&mutex_);
    if (pumping_ || ended_) {
      again_ = true;
      return;
    }
    pumping_ = true;
  }
  for (;;) {
    if (FillNext()) {
      if (peer_gone_) continue;
      StartWrite(&outgoing_);
      return;
    }
    absl::Status failure;
    {
      MutexLock lock(&mutex_);
      if (std::exchange(again_, false)) continue;
      if (!reads_done_ || is_starting_read_ || is_executing_ || !items_.empty() ||
          !errors_.empty()) {
        pumping_ = false;
        return;
      }
      ended_ = true;
      failure = failure_;
    }
    grpc::Status answer = ToGrpcStatus(failure);
    code_ = static_cast<absl::StatusCode>(answer.error_code());
    return Finish(std::move(answer));
  }
}

// The next item in turn that may have something, its flag taken down; null when there is none.
std::shared_ptr<BatchReactor::Item> BatchReactor::NextItem() {
  auto item = items_.upper_bound(last_served_);
  for (std::size_t i = 0; i < items_.size(); ++i, ++item) {
    if (item == items_.end()) item = items_.begin();
    if (!item->second->has_news) continue;
    item->second->has_news = false;
    last_served_ = item->first;
    return item->second;
  }
  return nullptr;
}

// Puts the next message into outgoing_; false when there is none now.
bool BatchReactor::FillNext() {
  for (;;) {
    std::shared_ptr<Item> item;
    {
      MutexLock lock(&mutex_);
      if (!errors_.empty()) {
        outgoing_ = std::move(errors_.front());
        errors_.pop_front();
        return true;
      }
      item = NextItem();
    }
    if (item == nullptr) return false;
    if (TakeEvent(*item)) {
      MutexLock lock(&mutex_);
      item->has_news = true;  // there may be more; the next TakeEvent finds out
      return true;
    }
    if (!item->request->finished()) continue;
    outgoing_ = EndOf(*item, item->request->Close());
    MutexLock lock(&mutex_);
    items_.erase(item->request->id());
    return true;
  }
}

// Puts the item's next event into outgoing_. Returns false if there is none.
bool BatchReactor::TakeEvent(Item& item) {
  v1::BatchGenerateResponse response;
  response.set_request_id(item.request->id());
  if (!item.request->TakeResponse(response.mutable_response())) return false;
  outgoing_ = SerializeMessage(response);
  return true;
}

// The last message of an item.
grpc::ByteBuffer BatchReactor::EndOf(const Item& item, const absl::Status& status) {
  v1::BatchGenerateResponse response;
  response.set_request_id(item.request->id());
  if (status.ok()) {
    response.mutable_done();
  } else {
    FillError(item.request->id(), status, item.request->usage(), &response);
  }
  return SerializeMessage(response);
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartBatchGenerate(
    const HandlerContext& context, grpc::CallbackServerContext* call) {
  auto reactor = std::make_shared<BatchReactor>(context, call);
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace quire::server
