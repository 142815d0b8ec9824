#include "engine/step/engine_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/output/token_stream.h"

namespace quire::engine {
namespace {

std::string Millis(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Milliseconds(time));
}

// The stage that an early end is reported with.
absl::string_view StageOf(const ScheduledRequest& live) {
  if (!live.was_scheduled) return "queue";
  return live.forked ? "decode" : "prefill";
}

std::int32_t OutputTokens(const ScheduledRequest& live) {
  return live.progress().output_tokens.load(std::memory_order_relaxed);
}

}  // namespace

absl::Status DeviceError() {
  return WithReason(absl::UnavailableError("the engine has failed, the process is ending"),
                    Reason::kDeviceError, {}, kRetryAfterFailure);
}

EngineCore::EngineCore(const EngineOptions& options, cache::CacheManager* cache,
                       models::StepRunner* runner, const Clock* clock, AdmissionLimiter* queue,
                       EngineProbe* probe)
    : options_(options),
      cache_(cache),
      runner_(runner),
      clock_(clock),
      queue_(queue),
      probe_(probe),
      scheduler_(options, cache),
      builder_(cache),
      plan_(&empty_plan_),
      max_in_flight_(static_cast<std::size_t>(
          std::clamp(std::min(options.max_steps_in_flight, runner->max_steps_in_flight()), 1,
                     static_cast<std::int32_t>(kMaxStepsInFlight)))),
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
  if (accepted->request.deadline != absl::InfiniteFuture()) {
    timers_.insert({accepted->request.deadline, {arrival, Timer::kDeadline}});
  }
  if (accepted->queue_deadline != absl::InfiniteFuture()) {
    timers_.insert({accepted->queue_deadline, {arrival, Timer::kQueue}});
  }
  return added->second.get();
}

void EngineCore::EraseTimers(const ScheduledRequest& live) {
  timers_.erase({live.request.deadline, {live.arrival, Timer::kDeadline}});
  timers_.erase({live.accepted->queue_deadline, {live.arrival, Timer::kQueue}});
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
    const auto reason = GetErrorReason(signal.status);
    probe_->Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
    scheduler_.Remove(live, /*invalidate=*/false);
    End(live, std::move(signal.status), /*was_accepted=*/false, now);
    return;
  }
  live.prompt = std::move(*signal.prompt);
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

absl::Status EngineCore::EarlyStatus(const ScheduledRequest& live, CancelSource source,
                                     absl::Time now, const std::string& text) const {
  const absl::string_view stage = StageOf(live);
  const std::string tokens = absl::StrCat(OutputTokens(live));
  const absl::Duration age = now - live.request.accept_time;
  switch (source) {
    case CancelSource::kClient:
      return WithReason(absl::CancelledError("client closed the stream"),
                        Reason::kCancelledByCaller);
    case CancelSource::kApi:
      return WithReason(absl::CancelledError("request was cancelled"), Reason::kCancelledByCaller);
    case CancelSource::kAdmin:
      return WithReason(absl::CancelledError("request was aborted by an operator"),
                        Reason::kAbortedByAdmin, {{"reason_text", text}});
    case CancelSource::kDeadline:
      return WithReason(absl::DeadlineExceededError(absl::StrCat(
                            "deadline passed ", Millis(age), " ms after acceptance, in ", stage,
                            ", with ", tokens, " output tokens")),
                        Reason::kTimeout, {{"stage", std::string(stage)}, {"tokens", tokens}});
    case CancelSource::kSlowClient: {
      const std::string stalled = Millis(now - live.full_since);
      return WithReason(
          absl::CancelledError(absl::StrCat("client read nothing for ", stalled, " ms, limit is ",
                                            Millis(options_.slow_client_timeout))),
          Reason::kSlowClient, {{"stalled_ms", stalled}});
    }
    case CancelSource::kShutdown:
      return WithReason(absl::UnavailableError("server is shutting down"), Reason::kServerShutdown);
    case CancelSource::kQueueTimeout:
      return WithReason(
          absl::ResourceExhaustedError(
              absl::StrCat("request waited ", Millis(age), " ms without being scheduled")),
          Reason::kQueueTimeout,
          {{"waited_ms", Millis(age)}, {"cause", live.is_prepared() ? "queue" : "tokenize"}},
          queue_->RetryDelay());
    case CancelSource::kRevoked:
      return WithReason(absl::UnauthenticatedError("the token was revoked while the request ran"),
                        Reason::kTokenInvalid);
  }
  return absl::InternalError("unknown cause of an early end");
}

void EngineCore::EndEarly(ScheduledRequest& live, CancelSource source, absl::Time now,
                          const std::string& text) {
  if (live.ended) return;
  const RequestState state = live.progress().state.load(std::memory_order_relaxed);
  ++early_ends_[static_cast<std::size_t>(state)][static_cast<std::size_t>(source)];
  const absl::Status status = EarlyStatus(live, source, now, text);
  log::Info("engine", "request ended early",
            {{"request_id", live.request.id},
             {"source", CancelSourceName(source)},
             {"state", RequestStateName(state)},
             {"output_tokens", OutputTokens(live)},
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
  if (live.is_prepared() && was_accepted) --(live.is_counted_running() ? running_ : waiting_);
  EraseTimers(live);
  OutputItem& item = Emit(OutputItem::Kind::kRequestEnd, live, now);
  item.status = std::move(status);
  item.was_accepted = was_accepted;
  const auto ended = live_.find(live.arrival);
  (num_in_flight_ > 0 ? flight(num_in_flight_ - 1).ended : ended_)
      .push_back(std::move(ended->second));
  live_.erase(ended);
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
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto [arrival, timer] = timers_.begin()->second;
    ScheduledRequest& live = *live_.at(arrival);
    if (timer == Timer::kQueue && live.was_scheduled) {
      timers_.erase(timers_.begin());
      continue;
    }
    EndEarly(live,
             timer == Timer::kDeadline ? CancelSource::kDeadline : CancelSource::kQueueTimeout,
             now);
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
  absl::Time wake = timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
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

EngineStats EngineCore::Stats(absl::Time now) const {
  EngineStats stats;
  stats.running = running_;
  stats.waiting = waiting_;
  stats.waiting_uncached_tokens = scheduler_.waiting_uncached_tokens();
  stats.blocked_admissions = scheduler_.blocked_admissions();
  stats.cache = cache_->stats();
  stats.prompt_tokens_per_second = prompt_rate_.PerSecond(now);
  stats.generation_tokens_per_second = generation_rate_.PerSecond(now);
  stats.steps = steps_;
  stats.overlap_steps = overlap_steps_;
  stats.preemptions = probe_->preemptions();
  stats.chunked_prefills = chunked_prefills_;
  stats.max_step_sequences = max_step_sequences_;
  stats.last_step_age = now - last_step_;
  stats.early_ends = early_ends_;
  return stats;
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

absl::Status EngineCore::CheckIntegrity() const {
  absl::Status status = scheduler_.CheckIntegrity();
  if (status.ok()) status = queue_->CheckIntegrity();
  if (status.ok() && cache_->steps_in_flight() != num_in_flight_) {
    status = absl::InternalError(absl::StrCat(
        num_in_flight_, " steps are in flight, the cache knows ", cache_->steps_in_flight()));
  }
  for (const auto& [arrival, live] : live_) {
    if (!status.ok()) break;
    status = live->accepted->stream->CheckIntegrity();
    if (live->ended) status = absl::InternalError("an ended request is still live");
    for (const auto& sequence : live->sequences) {
      if (num_in_flight_ > 0 || (sequence->in_flight == 0 && sequence->samples_in_flight == 0))
        continue;
      status = absl::InternalError(absl::StrCat("request ", live->request.id,
                                                " waits for a step although none is in flight"));
    }
  }
  if (!status.ok()) probe_->InvariantViolated();
  return status;
}

}  // namespace quire::engine
