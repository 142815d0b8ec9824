#include "engine/step/request_lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/output/token_stream.h"
#include "engine/step/early_end.h"

namespace quire::engine {
namespace {

// Sorts by arrival and removes duplicates: a request ends once, whatever the number of its choices.
void SortUnique(std::vector<ScheduledRequest*>* requests) {
  std::ranges::sort(*requests, {}, &ScheduledRequest::arrival);
  requests->erase(std::unique(requests->begin(), requests->end()), requests->end());
}

}  // namespace

absl::Status DeviceError() {
  return WithReason(absl::UnavailableError("the engine has failed, the process is exiting"),
                    Reason::kDeviceError, {}, kRetryAfterFailure);
}

RequestLifecycle::RequestLifecycle(const EngineOptions& options, const Parts& parts)
    : options_(options),
      slow_client_timeout_(options.slow_client_timeout),
      scheduler_(parts.scheduler),
      masks_(parts.masks),
      meter_(parts.meter),
      output_(parts.output),
      limiter_(parts.limiter),
      probe_(parts.probe),
      clock_(parts.clock) {}

ScheduledRequest* RequestLifecycle::Arrive(const std::shared_ptr<AcceptedRequest>& accepted) {
  const std::uint64_t arrival = accepted->arrival;
  if (const auto found = live_requests_.find(arrival); found != live_requests_.end())
    return found->second.get();
  if (accepted->progress.state.load(std::memory_order_relaxed) == RequestState::kFinished) {
    return nullptr;
  }
  const auto added =
      live_requests_.emplace(arrival, std::make_unique<ScheduledRequest>(accepted)).first;
  timers_.Add(*accepted);
  return added->second.get();
}

void RequestLifecycle::Prepare(Signal& signal, absl::Time now) {
  ScheduledRequest* const arrived = Arrive(signal.request);
  if (arrived == nullptr) {  // the request has ended during its preparation
    if (signal.prompt == nullptr) return;
    limiter_->RemoveTokens(signal.request->request.tenant, signal.prompt->queued_tokens);
    return;
  }
  // The text worker skipped a cancelled request, whose kCancel signal follows.
  if (absl::IsCancelled(signal.status)) return;
  ScheduledRequest& live = *arrived;
  live.progress().is_prepared.store(true, std::memory_order_relaxed);
  if (!signal.status.ok()) {
    if (signal.prompt != nullptr) {  // the constraint was refused
      limiter_->RemoveTokens(live.request.tenant, signal.prompt->queued_tokens);
    }
    const auto reason = GetErrorReason(signal.status);
    probe_->requests.Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
    scheduler_->Remove(live, /*invalidate=*/false);
    End(live, std::move(signal.status), /*was_accepted=*/false, now);
    return;
  }
  live.prompt = std::move(*signal.prompt);
  live.prompt_logprob_tokens = live.prompt.score_from;
  const auto prompt_tokens = static_cast<std::uint32_t>(live.prompt.tokens.size());
  for (const auto& sequence : live.sequences) sequence->prompt_tokens = prompt_tokens;
  Sequence& first = live.first();
  first.tokens = std::move(live.prompt.tokens);
  if (!options_.share_generated_pages) first.tagged_tokens = first.tokens;
  first.keys = std::move(live.prompt.keys);
  first.tokens.reserve(first.tokens.size() +
                       static_cast<std::size_t>(std::min(live.prompt.max_tokens, 4096)));
  first.history = std::move(live.prompt.history);
  meter_->CountAccepted();
  scheduler_->Add(&live);
}

void RequestLifecycle::Cancel(const Signal& signal, absl::Time now) {
  ScheduledRequest* const live = Arrive(signal.request);
  if (live != nullptr) EndEarly(*live, signal.source, now, signal.reason_text);
}

void RequestLifecycle::EndStoppedChoice(const Signal& signal, absl::Time now) {
  const auto live = live_requests_.find(signal.request->arrival);
  if (live == live_requests_.end()) return;
  Sequence& sequence = *live->second->sequences[static_cast<std::size_t>(signal.choice)];
  if (sequence.finished()) return;
  CopyChoiceCounters(sequence, &output_->Add(OutputItem::Kind::kChoiceEnd, *live->second, now));
  FinishChoice(sequence, now);
}

void RequestLifecycle::ReportStalls(absl::Time now) {
  const auto report = [&](const Sequence* sequence) {
    ScheduledRequest& live = *sequence->request;
    const AcceptedRequest& accepted = *live.accepted;
    OutputStall stall = OutputStall::kNone;
    if (live.request.output.stream &&
        accepted.stream->unread_tokens() >= options_.stream_queue_tokens) {
      stall = OutputStall::kClient;
    } else if (accepted.in_ring_tokens.load(std::memory_order_acquire) >=
               options_.stream_queue_tokens) {
      stall = OutputStall::kWorker;
    }
    scheduler_->SetOutputStall(live, stall, now);
  };
  std::ranges::for_each(scheduler_->running(), report);
  std::ranges::for_each(scheduler_->preempted(), report);
}

void RequestLifecycle::PublishPlan(const StepPlan& plan, absl::Time now) {
  for (const Sequence* sequence : plan.preempted) {
    probe_->steps.Preempted();
    meter_->RefreshGauge(*sequence->request);
  }
  for (ScheduledRequest* live : plan.started) Start(*live, now);
  std::uint32_t expired = 0;
  plan.ForEachRow([&](const PlannedRow& row) {
    ScheduledRequest& live = *row.sequence->request;
    meter_->RefreshGauge(live);
    if (live.request.deadline <= now) expired += row.num_tokens;
  });
  if (expired > 0) probe_->steps.ExpiredTokens(expired);
}

// Called when the request is admitted for the first time.
void RequestLifecycle::Start(ScheduledRequest& live, absl::Time now) {
  live.holds_queue_slot = false;
  limiter_->LeaveRequest(live.request.tenant);
  limiter_->RemoveTokens(live.request.tenant, live.prompt.queued_tokens);
  const std::int32_t queried =
      live.request.reads_cache() ? static_cast<std::int32_t>(live.first().prompt_tokens) : 0;
  probe_->cache.CountPrefixLookup(queried, live.cached_tokens);
  probe_->answers.ObserveQueue(now - live.request.accept_time);
  masks_->Start(live);
  const auto& constraint = live.prompt.mask_rules.constraint;
  OutputItem& item = output_->Add(OutputItem::Kind::kStarted, live, now);
  item.start = std::make_unique<OutputItem::Start>(OutputItem::Start{
      .cached_tokens = live.cached_tokens,
      .max_tokens = live.prompt.max_tokens,
      .opens_reasoning = live.prompt.opens_reasoning,
      .text_start = std::move(live.prompt.answer_start),
      .prompt_text = std::move(live.prompt.echo_text),
      .prompt_token_ids = std::move(live.prompt.echo_ids),
      .unenforced = constraint == nullptr ? std::vector<std::string>() : constraint->unenforced()});
}

bool RequestLifecycle::EndMasked(absl::Time now) {
  bool has_ended = false;
  for (Sequence* sequence :
       masks_->FindEndingChoices(scheduler_->running(), scheduler_->preempted())) {
    if (sequence->finished()) continue;  // another choice has ended the request
    has_ended = true;
    const absl::Status& status = sequence->mask->status();
    if (!status.ok()) {
      const bool is_own = !absl::IsInternal(status);
      Fail(*sequence->request, is_own ? status : InternalError(status.message()),
           /*invalidate=*/false, now);
      continue;
    }
    OutputItem& item = output_->Add(OutputItem::Kind::kChoiceEnd, *sequence->request, now);
    item.finish = FinishReason::kConstraintDone;
    CopyChoiceCounters(*sequence, &item);
    FinishChoice(*sequence, now);
  }
  if (has_ended) meter_->PublishWork(now);
  return has_ended;
}

void RequestLifecycle::FinishChoice(Sequence& sequence, absl::Time now) {
  ScheduledRequest& live = *sequence.request;
  meter_->CountFinishedChoice(sequence.output_tokens());
  scheduler_->Finish(sequence);
  if (live.live_choices > 0) {
    meter_->RefreshGauge(live);
    return;
  }
  FinishRequest(live, now);
}

void RequestLifecycle::FinishRequest(ScheduledRequest& live, absl::Time now) {
  scheduler_->Remove(live, /*invalidate=*/false);
  probe_->requests.Completed(live.is_counted_running());
  End(live, absl::OkStatus(), /*was_accepted=*/true, now);
}

void RequestLifecycle::EndEarly(ScheduledRequest& live, CancelSource source, absl::Time now,
                                const std::string& text) {
  if (live.ended) return;
  const RequestState state = live.progress().state.load(std::memory_order_relaxed);
  meter_->CountEarlyEnd(state, source);
  const absl::Status status = EarlyEndStatus(
      live, {.source = source,
             .time = now,
             .slow_client_timeout = slow_client_timeout_,
             .retry_delay = source == CancelSource::kQueueTimeout ? limiter_->RetryDelay()
                                                                  : absl::ZeroDuration(),
             .text = text});
  log::Info("engine", "request ended early",
            {{"request_id", live.request.id},
             {"source", CancelSourceName(source)},
             {"state", RequestStateName(state)},
             {"output_tokens", live.progress().output_tokens.load(std::memory_order_relaxed)},
             {"detail", std::string(status.message())}});
  scheduler_->Remove(live, /*invalidate=*/false);
  meter_->PublishCacheStats(EvictionCause::kAllocation);
  if (live.is_prepared()) {
    probe_->requests.Cancelled(live.is_counted_running(), source);
  } else {
    probe_->requests.CancelledInPreparation(source);
  }
  End(live, status, /*was_accepted=*/true, now);
}

void RequestLifecycle::Fail(ScheduledRequest& live, absl::Status status, bool invalidate,
                            absl::Time now) {
  if (live.ended) return;
  log::Error("engine", "request failed",
             {{"request_id", live.request.id},
              {"state", RequestStateName(live.progress().state.load(std::memory_order_relaxed))},
              {"status", status.ToString()}});
  if (invalidate) meter_->PublishCacheStats(EvictionCause::kAllocation);
  scheduler_->Remove(live, invalidate);
  meter_->PublishCacheStats(invalidate ? EvictionCause::kInvalidate : EvictionCause::kAllocation);
  probe_->requests.Failed(live.is_counted_running(), status.code());
  End(live, std::move(status), /*was_accepted=*/true, now);
}

void RequestLifecycle::FailEach(std::vector<ScheduledRequest*>* requests, absl::string_view what,
                                absl::Time now) {
  SortUnique(requests);
  for (ScheduledRequest* live : *requests) {
    Fail(*live, InternalError(what), /*invalidate=*/false, now);
  }
}

void RequestLifecycle::FailAll(absl::Time now) {
  while (!live_requests_.empty()) {
    ScheduledRequest& live = *live_requests_.begin()->second;
    if (live.is_prepared()) {
      Fail(live, DeviceError(), /*invalidate=*/false, now);
    } else {
      probe_->requests.Rejected(Reason::kDeviceError);
      scheduler_->Remove(live, /*invalidate=*/false);
      End(live, DeviceError(), /*was_accepted=*/false, now);
    }
  }
}

void RequestLifecycle::EndAll(absl::Time now) {
  while (!live_requests_.empty()) {
    EndEarly(*live_requests_.begin()->second, CancelSource::kShutdown, now);
  }
}

// After this call, the engine thread refers to the request only from steps in flight.
void RequestLifecycle::End(ScheduledRequest& live, absl::Status status, bool was_accepted,
                           absl::Time now) {
  live.ended = true;
  live.progress().state.store(RequestState::kFinished, std::memory_order_release);
  if (live.holds_queue_slot) {
    live.holds_queue_slot = false;
    limiter_->LeaveRequest(live.request.tenant);
    if (live.is_prepared()) limiter_->RemoveTokens(live.request.tenant, live.prompt.queued_tokens);
  }
  if (!live.is_prepared()) CancelCompile(live);
  masks_->Drop(live);
  if (live.is_prepared() && was_accepted) meter_->CountEnd(live);
  timers_.Remove(*live.accepted);
  OutputItem& item = output_->Add(OutputItem::Kind::kRequestEnd, live, now);
  item.status = std::move(status);
  item.was_accepted = was_accepted;
  const auto ended = live_requests_.find(live.arrival);
  ended_requests_.push_back(
      {.last_step = scheduler_->steps().launched(), .request = std::move(ended->second)});
  live_requests_.erase(ended);
}

void RequestLifecycle::FreeEnded() {
  const std::uint64_t completed = scheduler_->steps().completed();
  std::erase_if(ended_requests_,
                [&](const EndedRequest& ended) { return ended.last_step <= completed; });
}

// Cancels the compilation of the constraint. The request then gets no kPrepared signal.
void RequestLifecycle::CancelCompile(const ScheduledRequest& live) {
  const std::uint64_t ticket = live.accepted->compile_ticket.load(std::memory_order_acquire);
  if (ticket == 0 || !options_.constraints->Cancel(ticket)) return;
  limiter_->RemoveTokens(live.request.tenant,
                         live.progress().prompt_tokens.load(std::memory_order_relaxed));
}

absl::Status RequestLifecycle::InternalError(absl::string_view what) {
  const std::string incident =
      absl::StrFormat("%x-%x", absl::ToUnixSeconds(clock_->Now()), next_incident_++);
  log::Error("engine", "incident", {{"incident_id", incident}, {"what", what}});
  return WithReason(absl::InternalError(absl::StrCat("engine error, incident ", incident)),
                    Reason::kEngineError, {{"incident_id", incident}});
}

void RequestLifecycle::Expire(absl::Time now) {
  while (const auto timer = timers_.FindDue(now)) {
    ScheduledRequest& live = *live_requests_.at(timer->arrival);
    const bool is_queue = timer->kind == RequestTimers::Kind::kQueue;
    if (is_queue && live.was_scheduled) {
      timers_.RemoveQueueTimer(*live.accepted);
    } else {
      EndEarly(live, is_queue ? CancelSource::kQueueTimeout : CancelSource::kDeadline, now);
    }
  }
  slow_requests_.clear();
  const auto check = [&](const Sequence* sequence) {
    ScheduledRequest& live = *sequence->request;
    if (live.client_stalled_since + slow_client_timeout_ <= now) slow_requests_.push_back(&live);
  };
  std::ranges::for_each(scheduler_->running(), check);
  std::ranges::for_each(scheduler_->preempted(), check);
  SortUnique(&slow_requests_);
  for (ScheduledRequest* live : slow_requests_) EndEarly(*live, CancelSource::kSlowClient, now);
}

absl::Time RequestLifecycle::NextWake() const {
  absl::Time wake = timers_.next();
  const auto consider = [&](const Sequence* sequence) {
    wake = std::min(wake, sequence->request->client_stalled_since + slow_client_timeout_);
  };
  std::ranges::for_each(scheduler_->running(), consider);
  std::ranges::for_each(scheduler_->preempted(), consider);
  return wake;
}

absl::Status RequestLifecycle::CheckIntegrity() const {
  for (const auto& [arrival, live] : live_requests_) {
    if (live->ended) return absl::InternalError("an ended request is still live");
  }
  for (const EndedRequest& ended : ended_requests_) {
    if (!ended.request->ended || live_requests_.contains(ended.request->arrival)) {
      return absl::InternalError("a request that is kept for a step in flight has not ended");
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
