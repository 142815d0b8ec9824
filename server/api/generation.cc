#include "server/api/generation.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"
#include "quire/v1/generation.pb.h"
#include "server/api/response_translator.h"
#include "server/api/status_mapping.h"
#include "server/auth/authenticator.h"
#include "server/config/live_config.h"

namespace quire::server {
namespace {

AccessRecord MakeRecord(absl::string_view method, const std::string& traceparent,
                        const v1::GenerateRequest& message, const CallInfo& call) {
  AccessRecord record;
  record.method = method;
  record.traceparent = traceparent;
  record.principal = call.principal;
  record.tenant = call.tenant;
  record.request_id = message.request_id().substr(0, 128);
  return record;
}

void SetOutcome(const absl::Status& status, AccessRecord* record) {
  if (status.ok()) return;
  const WireError error = ToWireError(status);
  record->code = absl::StatusCodeToString(error.code);
  record->reason = error.reason;
}

}  // namespace

void EndRecord(const HandlerContext& context, const AccessRecord& record) {
  const std::shared_ptr<const DaemonOptions> options = context.config->options();
  // Without authentication every caller has the default tenant, which therefore counts as named.
  const bool is_named =
      record.tenant == CallInfo().tenant || options->engine.tenants.entries.contains(record.tenant);
  context.probe->CountTenant(record, is_named);
  if (options->access_log) WriteAccessLog(record);
  if (context.traces != nullptr) context.traces->Add(MakeTrace(record, context.clock->WallNow()));
}

absl::StatusOr<std::unique_ptr<Generation>> Generation::Start(const HandlerContext& context,
                                                              absl::string_view method,
                                                              const std::string& traceparent,
                                                              const v1::GenerateRequest& message,
                                                              const CallInfo& call) {
  std::unique_ptr<Generation> generation(
      new Generation(context, MakeRecord(method, traceparent, message, call), call.accept_time));
  bool translated = false;
  const absl::Status accepted = generation->Accept(message, call, &translated);
  if (accepted.ok()) return generation;
  const absl::Status status = SanitizeInternalError(accepted);
  AccessRecord& record = generation->record_;
  SetOutcome(status, &record);
  record.duration = context.clock->Now() - call.accept_time;
  // The engine counts the requests that it refuses.
  if (!translated) context.probe->CountRefused(*record.reason);
  EndRecord(context, record);
  return status;
}

// Runs every check that can reject the request, and fills the record with the values known so far.
absl::Status Generation::Accept(const v1::GenerateRequest& message, const CallInfo& call,
                                bool* translated) {
  QUIRE_ASSIGN_OR_RETURN(model_, context_.state->ModelOrError());
  QUIRE_ASSIGN_OR_RETURN(engine::Request request, model_->translator.ToRequest(message, call));
  *translated = true;
  deadline_ = request.deadline;
  record_.request_id = request.id;
  record_.model = request.model;
  record_.labels = request.labels;
  QUIRE_ASSIGN_OR_RETURN(stream_, model_->engine->Accept(std::move(request)));
  // A configuration reload may have revoked the token since authentication, and may have cancelled
  // that token's requests before this one was accepted.
  if (!context_.authenticator->IsStillAllowed(call.principal, Scope::kGenerate)) Revoke();
  return absl::OkStatus();
}

absl::Status Generation::Refuse(const HandlerContext& context, absl::string_view method,
                                const std::string& traceparent, const v1::GenerateRequest& message,
                                const CallInfo& call, const absl::Status& why) {
  absl::Status status = SanitizeInternalError(why);
  AccessRecord record = MakeRecord(method, traceparent, message, call);
  // The id of a damaged message may be invalid.
  if (!CheckRequestId(record.request_id, "request_id").ok()) record.request_id.clear();
  SetOutcome(status, &record);
  record.duration = context.clock->Now() - call.accept_time;
  context.probe->CountRefused(*record.reason);
  EndRecord(context, record);
  return status;
}

Generation::Generation(const HandlerContext& context, AccessRecord record, absl::Time accept_time)
    : context_(context), accept_time_(accept_time), record_(std::move(record)) {}

Generation::~Generation() {
  if (stream_ != nullptr && !is_closed_) Cancel();
}

void Generation::SetReadyCallback(std::function<void()> callback) {
  stream_->SetReadyCallback(std::move(callback));
}

void Generation::SetAbandonedCallback(std::function<void()> callback) {
  stream_->SetAbandonedCallback(std::move(callback));
}

bool Generation::TakeResponse(v1::GenerateResponse* message) {
  std::optional<engine::OutputEvent> event = stream_->Take();
  if (!event) return false;
  if (const auto* started = std::get_if<engine::StartedEvent>(&*event)) {
    record_.queue_time = started->schedule_time - accept_time_;
  }
  ToProto(*std::move(event), id(), *context_.clock, message);
  return true;
}

void Generation::Cancel() {
  const bool expired = context_.clock->Now() >= deadline_;
  model_->engine->Cancel({record_.tenant, record_.principal}, record_.request_id,
                         expired ? engine::CancelSource::kDeadline : engine::CancelSource::kClient,
                         stream_.get());
}

void Generation::Revoke() {
  model_->engine->Cancel({record_.tenant, record_.principal}, record_.request_id,
                         engine::CancelSource::kRevoked, stream_.get());
}

absl::Status Generation::Close() {
  QUIRE_CHECK(finished() && !is_closed_);
  is_closed_ = true;
  // After Close, the transport may destroy the objects that the callback uses.
  stream_->SetAbandonedCallback(nullptr);
  absl::Status status = SanitizeInternalError(stream_->status());
  SetOutcome(status, &record_);
  const engine::Usage usage = stream_->usage();
  record_.prompt_tokens = usage.prompt_tokens;
  record_.cached_tokens = usage.cached_tokens;
  record_.completion_tokens = usage.completion_tokens;
  record_.time_to_first_token = stream_->time_to_first_token();
  record_.duration = context_.clock->Now() - accept_time_;
  EndRecord(context_, record_);
  return status;
}

}  // namespace quire::server
