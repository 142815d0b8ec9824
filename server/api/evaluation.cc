#include "server/api/evaluation.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/status_mapping.h"
#include "server/auth/authenticator.h"
#include "server/config/live_config.h"

namespace quire::server {
namespace {

// Puts item.field, the name of the item in the request, before the message of an INVALID_ARGUMENT
// error.
absl::Status AddItemName(const EvaluationItem& item, const absl::Status& status) {
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  if (item.field.empty() || !absl::IsInvalidArgument(status) || !reason) return status;
  std::vector<std::pair<std::string, std::string>> metadata = {{"field", item.field}};
  for (const auto& entry : reason->metadata) {
    if (entry.first != "field") metadata.push_back(entry);
  }
  return WithReason(absl::InvalidArgumentError(absl::StrCat(item.field, ": ", status.message())),
                    reason->reason, std::move(metadata));
}

}  // namespace

Evaluation::Evaluation(const HandlerContext& context, absl::string_view method,
                       std::string traceparent, const CallInfo& call, Done done)
    : context_(context), call_(call), done_(std::move(done)) {
  record_.method = method;
  record_.traceparent = std::move(traceparent);
  record_.principal = call.principal;
  record_.tenant = call.tenant;
  // Later items append a number to the id of the call.
  record_.request_id = ChooseRequestId(call.metadata_request_id, kLongestItemSuffix);
}

void Evaluation::Refuse(const absl::Status& why) {
  const absl::Status status = SanitizeInternalError(why);
  context_.probe->CountRefused(ToWireError(status).reason);
  End(status);
}

void Evaluation::Start(const ServedModel& served, std::vector<EvaluationItem> items) {
  served_ = &served;
  options_ = served.translator.options();
  record_.model = served.id();
  items_.reserve(items.size());
  for (EvaluationItem& item : items) items_.push_back({.item = std::move(item)});
  is_started_.store(true);
  OnReady();
}

void Evaluation::Cancel() {
  is_cancelled_.store(true);
  // If Start has not run yet, its call of OnReady will see is_cancelled_.
  if (is_started_.load()) OnReady();
}

void Evaluation::FillRequest(std::size_t index, engine::Request* request) const {
  request->id = index == 0 ? id() : absl::StrCat(id(), "-", index);
  request->principal = call_.principal;
  request->tenant = call_.tenant;
  request->model = served_->id();
  request->accept_time = call_.accept_time;
  request->deadline =
      std::min(call_.grpc_deadline, call_.accept_time + options_->max_request_duration);
  request->queue_timeout = options_->queue_timeout;
}

// Runs Pump on this thread. If another thread is in Pump, that thread runs it once more instead.
void Evaluation::OnReady() {
  if (num_events_.fetch_add(1) > 0) return;
  const std::shared_ptr<Evaluation> self = shared_from_this();
  std::uint32_t seen = 1;
  for (;;) {
    Pump();
    const std::uint32_t all = num_events_.fetch_sub(seen);
    if (all == seen) return;
    seen = all - seen;
  }
}

void Evaluation::Pump() {
  if (has_ended_) return;
  if (is_cancelled_.load() && error_.ok()) {
    const bool has_expired = context_.clock->Now() >= call_.grpc_deadline;
    Fail(has_expired ? WithReason(absl::DeadlineExceededError("the deadline of the call passed"),
                                  Reason::kTimeout)
                     : WithReason(absl::CancelledError("client closed the call"),
                                  Reason::kCancelledByCaller),
         has_expired ? engine::CancelSource::kDeadline : engine::CancelSource::kClient);
  }
  for (ItemState& state : items_) {
    if (state.stream != nullptr) Drain(state);
  }
  Submit();
  if (num_live_ == 0) End(SanitizeInternalError(error_));
}

void Evaluation::Drain(ItemState& state) {
  while (std::optional<engine::OutputEvent> event = state.stream->Take()) {
    if (!error_.ok()) continue;
    if (auto* logprobs = std::get_if<engine::PromptLogprobsEvent>(&*event)) {
      std::move(logprobs->tokens.begin(), logprobs->tokens.end(),
                std::back_inserter(state.result.logprobs));
    } else if (auto* started = std::get_if<engine::StartedEvent>(&*event)) {
      state.prompt_ids = std::move(started->prompt_token_ids);
    } else if (auto* pooled = std::get_if<engine::PooledEvent>(&*event)) {
      state.result.pooled = std::move(pooled->values);
    }
  }
  if (!state.stream->finished()) return;
  const absl::Status status = state.stream->status();
  state.result.usage = state.stream->usage();
  record_.prompt_tokens += state.result.usage.prompt_tokens;
  record_.cached_tokens += state.result.usage.cached_tokens;
  state.stream.reset();
  state.is_done = true;
  --num_live_;
  if (!status.ok()) Fail(AddItemName(state.item, status), engine::CancelSource::kClient);
}

// Submits the items that can start. An item that waits for another one does not block later items.
void Evaluation::Submit() {
  while (first_unsubmitted_ < items_.size() &&
         (items_[first_unsubmitted_].is_done || items_[first_unsubmitted_].stream != nullptr)) {
    ++first_unsubmitted_;
  }
  for (std::size_t i = first_unsubmitted_; i < items_.size(); ++i) {
    if (!error_.ok() || num_live_ == kMaxLiveItems) return;
    const ItemState& state = items_[i];
    const bool has_begun = state.is_done || state.stream != nullptr;
    if (has_begun || (state.item.predecessor && !items_[*state.item.predecessor].is_done)) continue;
    if (!SubmitNext(i)) return;
  }
}

void Evaluation::CopyContext(const ItemState& earlier, engine::Request* request) {
  // A score has one log-probability per token of its continuation.
  const std::span<const std::int32_t> ids = earlier.prompt_ids;
  const auto context = ids.first(ids.size() - earlier.result.logprobs.size());
  std::get<engine::ScorePrompt>(request->prompt).context_ids.assign(context.begin(), context.end());
}

bool Evaluation::SubmitNext(std::size_t index) {
  ItemState& state = items_[index];
  engine::Request request = state.item.request;
  FillRequest(index, &request);
  if (state.item.copies_context) CopyContext(items_[*state.item.predecessor], &request);
  // If the queue is full, this item is retried when a live request of this call ends. If none is
  // live, the call fails.
  const bool can_retry = num_live_ > 0;
  absl::StatusOr<std::shared_ptr<engine::TokenStream>> stream =
      served_->engine->Accept(std::move(request), can_retry ? engine::QueueFullMetric::kNotCounted
                                                            : engine::QueueFullMetric::kCounted);
  if (!stream.ok()) {
    const bool retries = can_retry && engine::IsFull(stream.status());
    if (!retries) Fail(AddItemName(state.item, stream.status()), engine::CancelSource::kClient);
    return false;
  }
  state.stream = *std::move(stream);
  ++num_live_;
  if (state.item.copies_context)
    items_[*state.item.predecessor].prompt_ids = {};  // no other item needs them
  // This thread is in Pump, so OnReady only counts the event if the callback runs at once.
  state.stream->SetReadyCallback([self = shared_from_this()] { self->OnReady(); });
  state.item.request.prompt = engine::TokenPrompt();  // the engine has its own copy
  // The token may have been revoked since authentication; see Generation::Accept.
  if (!context_.authenticator->IsStillAllowed(call_.principal, Scope::kGenerate)) {
    Fail(RevokedError(), engine::CancelSource::kRevoked);
  }
  return true;
}

void Evaluation::Fail(const absl::Status& status, engine::CancelSource source) {
  if (!error_.ok()) return;
  error_ = status;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].stream == nullptr) continue;
    const std::string item_id = i == 0 ? id() : absl::StrCat(id(), "-", i);
    served_->engine->Cancel({call_.tenant, call_.principal}, item_id, source,
                            items_[i].stream.get());
  }
}

void Evaluation::End(absl::Status status) {
  has_ended_ = true;
  std::vector<EvaluationResult> results = TakeResults(status);
  done_(std::move(status), std::move(results));
}

std::vector<EvaluationResult> Evaluation::TakeResults(const absl::Status& status) {
  if (!status.ok()) {
    const WireError error = ToWireError(status);
    record_.code = absl::StatusCodeToString(error.code);
    record_.reason = error.reason;
  }
  record_.duration = context_.clock->Now() - call_.accept_time;
  EndRecord(context_, record_);
  std::vector<EvaluationResult> results;
  if (!status.ok()) return results;
  results.reserve(items_.size());
  for (ItemState& state : items_) results.push_back(std::move(state.result));
  return results;
}

}  // namespace quire::server
