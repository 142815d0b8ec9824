#include "engine/step/engine_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/output/token_stream.h"
#include "engine/step/early_end.h"

namespace quire::engine {

absl::Status DeviceError() {
  return WithReason(absl::UnavailableError("the engine has failed, the process is exiting"),
                    Reason::kDeviceError, {}, kRetryAfterFailure);
}

EngineCore::EngineCore(const EngineOptions& options, cache::CacheManager* cache,
                       runtime::StepRunner* runner, const Clock* clock, AdmissionLimiter* queue,
                       EngineProbe* probe)
    : options_(options),
      cache_(cache),
      runner_(runner),
      clock_(clock),
      queue_(queue),
      probe_(probe),
      heartbeat_(clock),
      scheduler_(options, cache),
      builder_(cache),
      plan_(&empty_plan_),
      max_in_flight_(static_cast<std::size_t>(
          std::clamp(std::min(options.max_steps_in_flight, runner->max_steps_in_flight()), 1,
                     static_cast<std::int32_t>(kMaxStepsInFlight)))),
      masks_(options.mask_threads, clock, [probe](absl::Duration time) { probe->MaskMade(time); }),
      last_step_(clock->Now()) {}

void EngineCore::Handle(Signal& signal, absl::Time now) {
  switch (signal.kind) {
    case Signal::Kind::kArrived:
      Arrive(signal.request);
      return;
    case Signal::Kind::kPrepared:
      Prepare(signal, now);
      return;
    case Signal::Kind::kCancel: {
      ScheduledRequest* const live = Arrive(signal.request);
      if (live != nullptr) EndEarly(*live, signal.source, now, signal.reason_text);
      return;
    }
    case Signal::Kind::kStopMatched: {
      const auto live = live_.find(signal.request->arrival);
      if (live == live_.end()) return;
      Sequence& sequence = *live->second->sequences[static_cast<std::size_t>(signal.choice)];
      if (sequence.finished()) return;
      FillEnd(sequence, &Emit(OutputItem::Kind::kChoiceEnd, *live->second, now));
      FinishChoice(sequence, now);
      return;
    }
    case Signal::Kind::kCall:
      signal.call();
      return;
  }
}

// Signals of one request come from several threads, so the first one to come counts as the arrival.
ScheduledRequest* EngineCore::Arrive(const std::shared_ptr<AcceptedRequest>& accepted) {
  const std::uint64_t arrival = accepted->arrival;
  if (const auto found = live_.find(arrival); found != live_.end()) return found->second.get();
  if (accepted->progress.state.load(std::memory_order_relaxed) == RequestState::kFinished) {
    return nullptr;
  }
  const auto added = live_.emplace(arrival, std::make_unique<ScheduledRequest>(accepted)).first;
  timers_.Add(*accepted);
  return added->second.get();
}

void EngineCore::Prepare(Signal& signal, absl::Time now) {
  ScheduledRequest* const arrived = Arrive(signal.request);
  if (arrived == nullptr) {  // it has ended while it was prepared
    if (signal.prompt == nullptr) return;
    queue_->RemoveTokens(signal.request->request.tenant, signal.prompt->queued_tokens);
    return;
  }
  // Its cancellation is under way; the text worker did nothing.
  if (absl::IsCancelled(signal.status)) return;
  ScheduledRequest& live = *arrived;
  live.progress().is_prepared.store(true, std::memory_order_relaxed);
  if (!signal.status.ok()) {
    if (signal.prompt != nullptr) {  // whose constraint was refused
      queue_->RemoveTokens(live.request.tenant, signal.prompt->queued_tokens);
    }
    const auto reason = GetErrorReason(signal.status);
    probe_->Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
    scheduler_.Remove(live, /*invalidate=*/false);
    End(live, std::move(signal.status), /*was_accepted=*/false, now);
    return;
  }
  live.prompt = std::move(*signal.prompt);
  live.prompt_logprob_tokens = live.prompt.score_from;
  const auto prompt_tokens = static_cast<std::uint32_t>(live.prompt.tokens.size());
  for (const auto& sequence : live.sequences) sequence->prompt_tokens = prompt_tokens;
  Sequence& first = live.first();
  first.tokens = std::move(live.prompt.tokens);
  if (!options_.share_generated_pages) first.marked_tokens = first.tokens;
  first.keys = std::move(live.prompt.keys);
  first.tokens.reserve(first.tokens.size() +
                       static_cast<std::size_t>(std::min(live.prompt.max_tokens, 4096)));
  first.history = std::move(live.prompt.history);
  probe_->Accepted();
  ++waiting_;
  scheduler_.Add(&live);
}

void EngineCore::EndEarly(ScheduledRequest& live, CancelSource source, absl::Time now,
                          const std::string& text) {
  if (live.ended) return;
  const RequestState state = live.progress().state.load(std::memory_order_relaxed);
  ++early_ends_[static_cast<std::size_t>(state)][static_cast<std::size_t>(source)];
  const absl::Status status = EarlyEndStatus(
      live, {.source = source,
             .time = now,
             .slow_client_timeout = options_.slow_client_timeout,
             .retry_delay = source == CancelSource::kQueueTimeout ? queue_->RetryDelay()
                                                                  : absl::ZeroDuration(),
             .text = text});
  log::Info("engine", "request ended early",
            {{"request_id", live.request.id},
             {"source", CancelSourceName(source)},
             {"state", RequestStateName(state)},
             {"output_tokens", live.progress().output_tokens.load(std::memory_order_relaxed)},
             {"detail", std::string(status.message())}});
  scheduler_.Remove(live, /*invalidate=*/false);
  probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  if (live.is_prepared()) {
    probe_->Cancelled(live.is_counted_running(), source);
  } else {
    probe_->CancelledInPreparation(source);
  }
  End(live, status, /*was_accepted=*/true, now);
}

void EngineCore::Fail(ScheduledRequest& live, absl::Status status, bool invalidate,
                      absl::Time now) {
  if (live.ended) return;
  log::Error("engine", "request failed",
             {{"request_id", live.request.id},
              {"state", RequestStateName(live.progress().state.load(std::memory_order_relaxed))},
              {"status", status.ToString()}});
  if (invalidate) probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  scheduler_.Remove(live, invalidate);
  probe_->ShowCache(cache_->stats(),
                    invalidate ? EvictionCause::kInvalidate : EvictionCause::kAllocation);
  probe_->Failed(live.is_counted_running(), status.code());
  End(live, std::move(status), /*was_accepted=*/true, now);
}

// The last thing that the engine thread does with a request.
void EngineCore::End(ScheduledRequest& live, absl::Status status, bool was_accepted,
                     absl::Time now) {
  live.ended = true;
  live.progress().state.store(RequestState::kFinished, std::memory_order_release);
  if (live.holds_queue_slot) {
    live.holds_queue_slot = false;
    queue_->LeaveRequest(live.request.tenant);
    if (live.is_prepared()) queue_->RemoveTokens(live.request.tenant, live.prompt.queued_tokens);
  }
  if (!live.is_prepared()) CancelCompile(live);
  if (live.first().mask != nullptr) --num_masked_;
  if (live.is_prepared() && was_accepted) --(live.is_counted_running() ? running_ : waiting_);
  timers_.Remove(*live.accepted);
  OutputItem& item = Emit(OutputItem::Kind::kRequestEnd, live, now);
  item.status = std::move(status);
  item.was_accepted = was_accepted;
  const auto ended = live_.find(live.arrival);
  (num_in_flight_ > 0 ? flight(num_in_flight_ - 1).ended : ended_)
      .push_back(std::move(ended->second));
  live_.erase(ended);
}

// Its constraint is not compiled any more, and its prompt does not come.
void EngineCore::CancelCompile(const ScheduledRequest& live) {
  const std::uint64_t ticket = live.accepted->compile_ticket.load(std::memory_order_acquire);
  if (ticket == 0 || !options_.constraints->Cancel(ticket)) return;
  queue_->RemoveTokens(live.request.tenant,
                       live.progress().prompt_tokens.load(std::memory_order_relaxed));
}

absl::Status EngineCore::InternalError(absl::string_view what) {
  const std::string incident =
      absl::StrFormat("%x-%x", absl::ToUnixSeconds(clock_->Now()), next_incident_++);
  log::Error("engine", "incident", {{"incident_id", incident}, {"what", what}});
  return WithReason(absl::InternalError(absl::StrCat("engine error, incident ", incident)),
                    Reason::kEngineError, {{"incident_id", incident}});
}

OutputItem& EngineCore::Emit(OutputItem::Kind kind, ScheduledRequest& live, absl::Time now) {
  OutputItem& item = output_.emplace_back();
  item.kind = kind;
  QUIRE_CHECK(!live.ended || kind == OutputItem::Kind::kRequestEnd);
  item.request = live.accepted;
  item.time = now;
  return item;
}

void EngineCore::TakeOutput(std::vector<OutputItem>* out) {
  out->clear();
  out->swap(output_);
}

void EngineCore::Expire(absl::Time now) {
  while (const auto timer = timers_.FindDue(now)) {
    ScheduledRequest& live = *live_.at(timer->arrival);
    const bool is_queue = timer->kind == RequestTimers::Kind::kQueue;
    if (is_queue && live.was_scheduled) {
      timers_.RemoveQueueTimer(*live.accepted);
    } else {
      EndEarly(live, is_queue ? CancelSource::kQueueTimeout : CancelSource::kDeadline, now);
    }
  }
  to_fail_.clear();
  auto check = [&](const Sequence* sequence) {
    ScheduledRequest& live = *sequence->request;
    if (live.full_since + options_.slow_client_timeout <= now) to_fail_.push_back(&live);
  };
  for (const Sequence* sequence : scheduler_.running()) check(sequence);
  for (const Sequence* sequence : scheduler_.preempted()) check(sequence);
  // A request ends once; its other choices find it ended, and it stays alive until the next step.
  std::sort(
      to_fail_.begin(), to_fail_.end(),
      [](const ScheduledRequest* a, const ScheduledRequest* b) { return a->arrival < b->arrival; });
  to_fail_.erase(std::unique(to_fail_.begin(), to_fail_.end()), to_fail_.end());
  for (ScheduledRequest* live : to_fail_) EndEarly(*live, CancelSource::kSlowClient, now);
}

absl::Time EngineCore::NextWake() const {
  absl::Time wake = timers_.next();
  auto consider = [&](const Sequence* sequence) {
    wake = std::min(wake, sequence->request->full_since + options_.slow_client_timeout);
  };
  for (const Sequence* sequence : scheduler_.running()) consider(sequence);
  for (const Sequence* sequence : scheduler_.preempted()) consider(sequence);
  return wake;
}

void EngineCore::EndAll(absl::Time now) {
  while (!live_.empty()) {
    EndEarly(*live_.begin()->second, CancelSource::kShutdown, now);
  }
}

void EngineCore::FailAll(absl::Time now) {
  while (!live_.empty()) {
    ScheduledRequest& live = *live_.begin()->second;
    if (live.is_prepared()) {
      Fail(live, DeviceError(), /*invalidate=*/false, now);
    } else {
      probe_->Rejected(Reason::kDeviceError);
      scheduler_.Remove(live, /*invalidate=*/false);
      End(live, DeviceError(), /*was_accepted=*/false, now);
    }
  }
}

cache::FlushCounts EngineCore::FlushCache() {
  probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  const cache::FlushCounts counts = cache_->Flush();
  probe_->ShowCache(cache_->stats(), EvictionCause::kFlush);
  return counts;
}

PageSnapshot EngineCore::DescribePages() const {
  PageSnapshot snapshot;
  std::map<std::uint32_t, std::int32_t> owner_of_row;
  for (const auto& [arrival, live] : live_) {
    for (const auto& sequence : live->sequences) {
      if (!sequence->row) continue;
      owner_of_row[sequence->row->value()] =
          PageSnapshot::kFirstOwner + static_cast<std::int32_t>(snapshot.owners.size());
      snapshot.owners.push_back(live->request.id);
    }
  }
  for (const cache::PageUse& use : cache_->DescribePages()) {
    std::int32_t page = PageSnapshot::kFree;
    if (use.kind == cache::PageUse::Kind::kCached) page = PageSnapshot::kCached;
    if (use.kind == cache::PageUse::Kind::kUsed) {
      const auto owner = owner_of_row.find(use.row.value());
      page = use.num_rows > 1                                   ? PageSnapshot::kShared
             : use.num_rows == 1 && owner != owner_of_row.end() ? owner->second
                                                                : PageSnapshot::kWork;
    }
    snapshot.pages.push_back(page);
  }
  return snapshot;
}

// Of what is in flight, and of the requests that wait for it.
absl::Status EngineCore::CheckSteps() const {
  if (cache_->steps_in_flight() != num_in_flight_) {
    return absl::InternalError(absl::StrCat(
        num_in_flight_, " steps are in flight, the cache knows ", cache_->steps_in_flight()));
  }
  for (const auto& [arrival, live] : live_) {
    if (live->ended) return absl::InternalError("an ended request is still live");
    for (const auto& sequence : live->sequences) {
      if (num_in_flight_ > 0 || (sequence->in_flight == 0 && sequence->samples_in_flight == 0))
        continue;
      return absl::InternalError(absl::StrCat("request ", live->request.id,
                                              " waits for a step although none is in flight"));
    }
  }
  return absl::OkStatus();
}

IntegrityReport EngineCore::CheckIntegrity() const {
  const absl::Time start = clock_->Now();
  IntegrityReport report;
  const auto note = [&report](absl::string_view name, const absl::Status& status) {
    ++report.num_checks;
    if (!status.ok()) report.failures.push_back(absl::StrCat(name, ": ", status.message()));
  };
  note("Scheduler", scheduler_.CheckIntegrity());
  note("CacheManager", cache_->CheckIntegrity());
  note("AdmissionLimiter", queue_->CheckIntegrity());
  absl::Status own = CheckSteps();
  own.Update(CheckMasks());
  note("EngineCore", own);
  for (const auto& [arrival, live] : live_) {
    note("TokenStream", live->accepted->stream->CheckIntegrity());
  }
  if (!report.failures.empty()) probe_->InvariantViolated();
  report.pause = clock_->Now() - start;
  return report;
}

}  // namespace quire::engine
