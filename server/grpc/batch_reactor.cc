// Implements StartBatchGenerate of generate_reactor.h: many generations over one stream. Commands
// are read one at a time. The events of the items are written round-robin, one message each, so
// that no item starves.

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

// Maximum number of refusals that wait to be written. At this limit no further command is read.
constexpr std::size_t kMaxWaitingErrors = 64;
// Interval at which a stream checks that its token is not revoked.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(250);

class BatchReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  BatchReactor(const HandlerContext& context, grpc::CallbackServerContext* call)
      : context_(context), call_(call) {
    context_.probe->StreamOpened();
  }

  void Begin(std::shared_ptr<BatchReactor> self) {
    self_ = std::move(self);
    checked_version_ = context_.authenticator->version();
    const absl::StatusOr<Identity> caller =
        Authorize(context_, *call_, "BatchGenerate", Scope::kGenerate);
    if (!caller.ok()) return Refuse(caller.status());
    principal_ = caller->principal;
    ScheduleCallerCheck(self_);
    ReadNext();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { Abandon(); }
  void OnDone() override;

 private:
  struct Item {
    std::unique_ptr<Generation> request;
    bool may_have_events = false;  // set by the ready callback, cleared before TakeEvent
  };
  using Items = std::map<std::string, std::shared_ptr<Item>>;
  struct ReadState {
    bool is_under_way = false;
    bool is_starting = false;  // StartRead has not returned, so Finish must wait
    // A command is being executed. It may still add an item although the caller's token was
    // revoked.
    bool is_executing = false;
    bool is_done = false;  // nothing more is read
  };

  void Refuse(const absl::Status& status);
  absl::Status Execute(const v1::BatchGenerateRequest& message);
  void StartItem(const v1::GenerateRequest& message);
  void QueueError(const std::string& id, const absl::Status& status);
  void ScheduleCallerCheck(const std::weak_ptr<BatchReactor>& self);
  void CheckCaller(const std::shared_ptr<BatchReactor>& self);
  void Revoke();
  void ReadNext();
  void Abandon();
  void Pump();
  bool FillNext();
  bool TakeEvent(Item& item);
  static grpc::ByteBuffer MakeLastMessage(const Item& item, const absl::Status& status);
  std::shared_ptr<Item> TakeReadyItem() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HandlerContext context_;
  grpc::CallbackServerContext* const call_;
  std::shared_ptr<BatchReactor> self_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string principal_;
  std::uint64_t checked_version_ = 0;  // authenticator's version at the last CheckCaller
  grpc::Alarm alarm_;
  grpc::ByteBuffer incoming_;   // filled by the read under way
  grpc::ByteBuffer outgoing_;   // used by the thread in Pump
  bool has_peer_gone_ = false;  // used by the thread in Pump

  Mutex mutex_;
  Items items_ ABSL_GUARDED_BY(mutex_);
  std::string last_served_ ABSL_GUARDED_BY(mutex_);  // id of the item whose event was written last
  std::deque<grpc::ByteBuffer> queued_errors_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  ReadState read_ ABSL_GUARDED_BY(mutex_);
  bool is_abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool must_pump_again_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
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
    read_.is_executing = true;
  }
  if (ok) status = ParseMessage(incoming_, &message);
  if (ok && status.ok()) status = Execute(message);
  {
    MutexLock lock(&mutex_);
    read_.is_under_way = read_.is_executing = false;
    // If `ok` is false, the client has half-closed or the stream has ended. Running items continue
    // unless OnCancel cancels them.
    if (!ok || !status.ok()) read_.is_done = true;
    failure_.Update(status);
  }
  if (!status.ok()) Abandon();
  ReadNext();
  Pump();
}

void BatchReactor::OnWriteDone(bool ok) {
  if (!ok) {
    has_peer_gone_ = true;
    Abandon();
  }
  {
    MutexLock lock(&mutex_);
    is_pumping_ = false;
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
  // Destroys the reactor, unless a callback of a stream is just returning from Pump.
  const std::shared_ptr<BatchReactor> self = std::move(self_);
}

// Ends the call before anything was read.
void BatchReactor::Refuse(const absl::Status& status) {
  const grpc::Status answer = ToGrpcStatus(status);
  code_ = static_cast<absl::StatusCode>(answer.error_code());
  {
    MutexLock lock(&mutex_);
    read_.is_done = true;
    has_ended_ = true;
  }
  Finish(answer);
}

// Runs a command. A returned error ends the whole stream. An error of one item becomes its
// ItemError.
absl::Status BatchReactor::Execute(const v1::BatchGenerateRequest& message) {
  if (message.has_generate()) {
    StartItem(message.generate());
    return absl::OkStatus();
  }
  if (message.command_case() != v1::BatchGenerateRequest::kCancelRequestId) {
    return WithReason(
        absl::InvalidArgumentError("command is missing; set generate or cancel_request_id"),
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
  // Every item is authorized, because the stream may outlive the token that opened it.
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
    abandoned = is_abandoned_;
  }
  if (abandoned) item->request->Cancel();
  // A client that does not read a message in time blocks all items of the stream, so the call is
  // cancelled.
  item->request->SetAbandonedCallback([self = self_] { self->call_->TryCancel(); });
  // The token stream owns this callback, and the callback owns the reactor. OnDone breaks the
  // cycle. The callback refers to the item by a weak pointer, because the item owns the token
  // stream.
  item->request->SetReadyCallback([self = self_, weak_item = std::weak_ptr<Item>(item)] {
    const std::shared_ptr<Item> ready = weak_item.lock();
    if (ready == nullptr) return;
    {
      MutexLock lock(&self->mutex_);
      ready->may_have_events = true;
    }
    self->Pump();
  });
}

void BatchReactor::QueueError(const std::string& id, const absl::Status& status) {
  v1::BatchGenerateResponse response;
  FillError(id, status, engine::Usage(), &response);
  MutexLock lock(&mutex_);
  queued_errors_.push_back(SerializeMessage(response));
}

// Repeats CheckCaller with a timer, so that a stream without commands ends soon after its token is
// revoked.
void BatchReactor::ScheduleCallerCheck(const std::weak_ptr<BatchReactor>& self) {
  alarm_.Set(ToGrpcTime(MonotonicNow() + kCheckInterval), [self](bool) {
    if (const std::shared_ptr<BatchReactor> alive = self.lock()) alive->CheckCaller(alive);
  });
}

void BatchReactor::CheckCaller(const std::shared_ptr<BatchReactor>& self) {
  bool is_authorized = true;
  {
    MutexLock lock(&mutex_);
    // The daemon keeps the authenticator until the stream has ended, and the stream cannot end
    // under this lock.
    if (has_ended_) return;
    const std::uint64_t version = context_.authenticator->version();
    if (version != checked_version_) {
      is_authorized = context_.authenticator->IsStillAllowed(principal_, Scope::kGenerate);
    }
    checked_version_ = version;
  }
  if (!is_authorized) return Revoke();
  ScheduleCallerCheck(self);
}

// Ends all items, then the stream.
void BatchReactor::Revoke() {
  std::vector<std::shared_ptr<Item>> items;
  {
    MutexLock lock(&mutex_);
    read_.is_done = true;
    failure_.Update(RevokedError());
    for (const auto& [id, item] : items_) items.push_back(item);
  }
  for (const auto& item : items) item->request->Revoke();
  Pump();
}

void BatchReactor::ReadNext() {
  {
    MutexLock lock(&mutex_);
    if (read_.is_under_way || read_.is_done || queued_errors_.size() >= kMaxWaitingErrors) return;
    read_.is_under_way = true;
    read_.is_starting = true;
  }
  // The read may complete and the reactor may be done before StartRead returns.
  const std::shared_ptr<BatchReactor> self = self_;
  StartRead(&incoming_);
  {
    MutexLock lock(&mutex_);
    read_.is_starting = false;
    if (!read_.is_done) return;
  }
  Pump();
}

// Cancels all items. The stream then waits for all items, so that no item is running when the
// stream ends.
void BatchReactor::Abandon() {
  std::vector<std::shared_ptr<Item>> items;
  {
    MutexLock lock(&mutex_);
    is_abandoned_ = true;
    for (const auto& [id, item] : items_) items.push_back(item);
  }
  for (const auto& item : items) item->request->Cancel();
}

// Writes the next message or ends the call, unless another thread is doing so. That thread checks
// `must_pump_again_` before it stops, so no event is lost.
void BatchReactor::Pump() {
  {
    MutexLock lock(&mutex_);
    if (is_pumping_ || has_ended_) {
      must_pump_again_ = true;
      return;
    }
    is_pumping_ = true;
  }
  for (;;) {
    if (FillNext()) {
      if (has_peer_gone_) continue;
      StartWrite(&outgoing_);
      return;
    }
    absl::Status failure;
    {
      MutexLock lock(&mutex_);
      if (std::exchange(must_pump_again_, false)) continue;
      if (!read_.is_done || read_.is_starting || read_.is_executing || !items_.empty() ||
          !queued_errors_.empty()) {
        is_pumping_ = false;
        return;
      }
      has_ended_ = true;
      failure = failure_;
    }
    grpc::Status answer = ToGrpcStatus(failure);
    code_ = static_cast<absl::StatusCode>(answer.error_code());
    return Finish(std::move(answer));
  }
}

// Returns the next item that may have events and clears its flag, or null if there is none.
std::shared_ptr<BatchReactor::Item> BatchReactor::TakeReadyItem() {
  auto item = items_.upper_bound(last_served_);
  for (std::size_t i = 0; i < items_.size(); ++i, ++item) {
    if (item == items_.end()) item = items_.begin();
    if (!item->second->may_have_events) continue;
    item->second->may_have_events = false;
    last_served_ = item->first;
    return item->second;
  }
  return nullptr;
}

// Puts the next message into outgoing_. Returns false if there is none.
bool BatchReactor::FillNext() {
  for (;;) {
    std::shared_ptr<Item> item;
    {
      MutexLock lock(&mutex_);
      if (!queued_errors_.empty()) {
        outgoing_ = std::move(queued_errors_.front());
        queued_errors_.pop_front();
        return true;
      }
      item = TakeReadyItem();
    }
    if (item == nullptr) return false;
    if (TakeEvent(*item)) {
      MutexLock lock(&mutex_);
      item->may_have_events = true;  // the next TakeEvent checks for more
      return true;
    }
    if (!item->request->finished()) continue;
    outgoing_ = MakeLastMessage(*item, item->request->Close());
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

// Returns the last message of an item.
grpc::ByteBuffer BatchReactor::MakeLastMessage(const Item& item, const absl::Status& status) {
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
