#include "engine/request_intake.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "engine/request/inbox.h"
#include "engine/request/text_stage.h"
#include "engine/step/request_lifecycle.h"

namespace quire::engine {
namespace {

// Rejects a priority that is more urgent than the tenant allows. A lower value is more urgent.
absl::Status CheckPriority(const Request& request, const TenantLimits& limits) {
  constexpr std::int32_t kMaxPriority = 100;
  const std::int32_t most_urgent = limits.most_urgent_priority.value_or(request.priority);
  if (request.priority >= most_urgent) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("priority is ", request.priority, ", tenant \"",
                                              request.tenant, "\" may ask for ", most_urgent,
                                              " to ", kMaxPriority, " (most_urgent_priority)")),
      Reason::kBadParameter,
      {{"field", "priority"},
       {"value", absl::StrCat(request.priority)},
       {"range", absl::StrCat(most_urgent, " to ", kMaxPriority)}});
}

absl::Status CheckTask(const Request& request, bool has_head, bool can_pool) {
  const bool can = request.task == Task::kEmbed ? can_pool : has_head;
  if (can) return absl::OkStatus();
  return WithReason(absl::UnimplementedError(
                        request.task == Task::kEmbed
                            ? "this device does not support embeddings"
                            : "the model has no output matrix, so it supports only embeddings"),
                    Reason::kFeatureUnsupported,
                    {{"feature", request.task == Task::kEmbed ? "embed" : "generate"}});
}

}  // namespace

bool IsFull(const absl::Status& status) {
  return HasReason(status, Reason::kQueueFull) || HasReason(status, Reason::kTenantLimit);
}

absl::Status ShutdownError(const AdmissionLimiter& limiter) {
  return WithReason(absl::UnavailableError("server is shutting down"), Reason::kServerShutdown, {},
                    limiter.RetryDelay());
}

RequestIntake::RequestIntake(const EngineOptions& options, bool can_pool, Parts parts)
    : options_(options), can_pool_(can_pool), parts_(std::move(parts)) {}

absl::StatusOr<std::shared_ptr<TokenStream>> RequestIntake::Accept(
    Request request, QueueFullMetric queue_full_metric) {
  if (queue_full_metric == QueueFullMetric::kCounted) parts_.probe->requests.Received();
  absl::StatusOr<std::shared_ptr<TokenStream>> stream = TryAccept(std::move(request));
  if (queue_full_metric == QueueFullMetric::kNotCounted) {
    if (IsFull(stream.status())) return stream;
    parts_.probe->requests.Received();
  }
  if (!stream.ok()) {
    const auto reason = GetErrorReason(stream.status());
    parts_.probe->requests.Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
  }
  return stream;
}

bool RequestIntake::Cancel(const Caller& caller, absl::string_view id, CancelSource source,
                           const TokenStream* stream) {
  const std::shared_ptr<AcceptedRequest> live = parts_.table->Find(caller, id);
  if (live == nullptr || (stream != nullptr && live->stream.get() != stream)) return false;
  PostCancel(live, source, {});
  return true;
}

absl::Status RequestIntake::CheckConstraint(const Request& request) const {
  if (!request.constraint.has_value()) return absl::OkStatus();
  if (options_.constraints == nullptr) {
    const char* field = "constraint";
    if (request.constraint->kind == ConstraintKind::kToolCalls) {
      field = request.constraint->calls_are_optional ? "chat.tools" : "chat.tool_choice";
    }
    return WithReason(absl::UnimplementedError("structured output is not available on this server"),
                      Reason::kFeatureUnsupported, {{"field", field}});
  }
  if (!request.stopping.ignore_eos) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError("stopping.ignore_eos cannot be combined with a constraint: the "
                                 "constraint decides where the text ends"),
      Reason::kBadParameter, {{"field", "stopping.ignore_eos"}});
}

absl::Status RequestIntake::CheckState() const {
  switch (parts_.state->load()) {
    case EngineState::kReady:
      return absl::OkStatus();
    case EngineState::kDraining:
      return WithReason(absl::UnavailableError("server is draining"), Reason::kServerDraining, {},
                        parts_.limiter->RetryDelay());
    case EngineState::kStopped:
      return ShutdownError(*parts_.limiter);
    case EngineState::kFailed:
      return DeviceError();
  }
  return absl::OkStatus();
}

absl::Status RequestIntake::CheckRequest(const Request& request, const HotOptions& hot) const {
  const std::int64_t bytes = InputBytes(request);
  if (bytes > hot.max_input_bytes) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("prompt has ", bytes, " bytes, at most ",
                                                hot.max_input_bytes, " are allowed")),
        Reason::kInputTooLarge,
        {{"field", "prompt"},
         {"bytes", absl::StrCat(bytes)},
         {"max_bytes", absl::StrCat(hot.max_input_bytes)}});
  }
  QUIRE_RETURN_IF_ERROR(CheckState());
  // A template may render text even if the messages have none.
  if (bytes == 0 && !std::holds_alternative<ChatPrompt>(request.prompt)) {
    return WithReason(absl::InvalidArgumentError("prompt is empty"), Reason::kPromptMissing);
  }
  QUIRE_RETURN_IF_ERROR(CheckTask(request, options_.has_head, can_pool_));
  if (request.generates()) {
    QUIRE_RETURN_IF_ERROR(Validate(request.sampling, hot.limits));
    QUIRE_RETURN_IF_ERROR(Validate(request.stopping, hot.limits));
    QUIRE_RETURN_IF_ERROR(Validate(request.output, hot.limits));
  }
  QUIRE_RETURN_IF_ERROR(CheckConstraint(request));
  QUIRE_RETURN_IF_ERROR(CheckPriority(request, hot.tenants.LimitsOf(request.tenant)));
  if (request.sampling.choice_count > hot.max_running_sequences) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "sampling.choice_count is ", request.sampling.choice_count, ", at most ",
                          hot.max_running_sequences, " sequences can run")),
                      Reason::kBadSamplingParam,
                      {{"field", "sampling.choice_count"},
                       {"value", absl::StrCat(request.sampling.choice_count)},
                       {"range", absl::StrCat("[1, ", hot.max_running_sequences, "]")}});
  }
  return absl::OkStatus();
}

std::shared_ptr<AcceptedRequest> RequestIntake::MakeAccepted(Request request,
                                                             const HotOptions& hot) {
  if (request.accept_time == absl::Time()) request.accept_time = parts_.clock->Now();
  request.deadline = std::min(request.deadline, request.accept_time + hot.max_request_duration);
  if (request.queue_timeout == absl::InfiniteDuration()) {
    request.queue_timeout = hot.queue_timeout;
  }
  auto stream = std::make_shared<TokenStream>();
  stream->SetDrainedCallback(options_.stream_queue_tokens,
                             [inbox = parts_.inbox] { inbox->Wake(); });
  const std::uint64_t arrival = next_arrival_.fetch_add(1);
  stream->SetFullyReadCallback([unread = std::weak_ptr(parts_.unread), arrival] {
    if (const std::shared_ptr<UnreadAnswers> alive = unread.lock()) alive->Remove(arrival);
  });
  return std::make_shared<AcceptedRequest>(
      std::move(request), arrival, arrival % static_cast<std::uint64_t>(options_.text_threads),
      std::move(stream));
}

// Counts the request as queued and submits it to the text workers, or does neither.
absl::Status RequestIntake::Enqueue(const std::shared_ptr<AcceptedRequest>& live) {
  const std::string& tenant = live->request.tenant;
  QUIRE_RETURN_IF_ERROR(parts_.limiter->EnterRequest(tenant, parts_.unread->CountsOf(tenant)));
  absl::Status submitted = parts_.text->Submit(live);
  if (!submitted.ok()) parts_.limiter->LeaveRequest(tenant);
  return submitted;
}

absl::StatusOr<std::shared_ptr<TokenStream>> RequestIntake::TryAccept(Request request) {
  const std::shared_ptr<const HotOptions> hot = parts_.hot->Get();
  QUIRE_RETURN_IF_ERROR(CheckRequest(request, *hot));
  const std::shared_ptr<AcceptedRequest> live = MakeAccepted(std::move(request), *hot);
  if (live->request.deadline <= parts_.clock->Now()) {
    return WithReason(absl::DeadlineExceededError("deadline had passed on arrival"),
                      Reason::kTimeout, {{"stage", "queue"}, {"tokens", "0"}});
  }
  QUIRE_RETURN_IF_ERROR(
      parts_.table->Insert(live, parts_.limiter->RetryDelay(), [&] { return Enqueue(live); }));
  parts_.inbox->Post({.kind = Signal::Kind::kArrived, .request = live});
  return live->stream;
}

void RequestIntake::PostCancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source,
                               std::string text) {
  if (live->cancel_requested.exchange(true, std::memory_order_acq_rel)) return;
  parts_.inbox->Post({.kind = Signal::Kind::kCancel,
                      .request = live,
                      .source = source,
                      .reason_text = std::move(text)});
}

absl::StatusOr<AbortResult> RequestIntake::Abort(const AbortSelection& selection) {
  if (selection.ids.empty() && !selection.all) {
    return WithReason(absl::InvalidArgumentError(
                          "nothing is selected; set request_ids, or set all and narrow it with "
                          "tenant or older_than"),
                      Reason::kSelectionEmpty, {{"field", "request_ids"}});
  }
  AbortResult result;
  const absl::Time now = parts_.clock->Now();
  result.unknown_ids = selection.ids;
  for (const std::shared_ptr<AcceptedRequest>& live : parts_.table->All()) {
    const Request& request = live->request;
    if (!selection.ids.empty()) {
      if (std::ranges::find(selection.ids, request.id) == selection.ids.end()) continue;
      std::erase(result.unknown_ids, request.id);
    }
    if (!selection.tenant.empty() && request.tenant != selection.tenant) continue;
    const bool by_age = selection.older_than > absl::ZeroDuration();
    if (by_age && now - request.accept_time <= selection.older_than) continue;
    PostCancel(live, CancelSource::kAdmin, selection.reason_text);
    ++result.aborted;
  }
  return result;
}

std::vector<RequestInfo> RequestIntake::ListRequests() const {
  std::vector<RequestInfo> infos;
  for (const std::shared_ptr<AcceptedRequest>& live : parts_.table->All()) {
    const Request& request = live->request;
    infos.push_back({.id = request.id,
                     .model = request.model,
                     .principal = request.principal,
                     .tenant = request.tenant,
                     .state = live->progress.state.load(std::memory_order_acquire),
                     .accept_time = request.accept_time,
                     .deadline = request.deadline,
                     .prompt_tokens = live->progress.prompt_tokens.load(std::memory_order_relaxed),
                     .output_tokens = live->progress.output_tokens.load(std::memory_order_relaxed),
                     .kv_pages = live->progress.pages.load(std::memory_order_relaxed),
                     .priority = request.priority,
                     .labels = request.labels});
  }
  return infos;
}

}  // namespace quire::engine
