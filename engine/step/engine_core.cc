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
absl::string_view StageOf(const LiveRequest& live) {
  if (!live.was_scheduled) return "queue";
  return live.forked ? "decode" : "prefill";
}

std::int32_t OutputTokens(const LiveRequest& live) {
  return live.shown_output_tokens.load(std::memory_order_relaxed);
}

}  // namespace

absl::Status DeviceError() {
  return WithReason(absl::UnavailableError("the engine has failed, the process is ending"),
                    Reason::kDeviceError, {}, kRetryAfterFailure);
}

EngineCore::EngineCore(const EngineOptions& options, cache::CacheManager* cache,
                       models::StepRunner* runner, const Clock* clock, AdmissionQueue* queue,
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
      Arrive(signal.request);
      Prepare(*signal.request, now);
      return;
    case Signal::Kind::kCancel:
      Arrive(signal.request);
      EndEarly(*signal.request, signal.source, now, signal.reason_text);
      return;
    case Signal::Kind::kStopMatched: {
      LiveRequest& live = *signal.request;
      if (live.ended) return;
      Sequence& sequence = *live.sequences[static_cast<std::size_t>(signal.choice)];
      if (sequence.state == SequenceState::kFinished) return;
      FillEnd(sequence, &Emit(OutputItem::Kind::kChoiceEnd, live, now));
      FinishChoice(sequence, now);
      return;
    }
    case Signal::Kind::kCall:
      signal.call();
      return;
  }
}

// Signals of one request come from several threads, so the first one to come counts as the arrival.
void EngineCore::Arrive(const std::shared_ptr<LiveRequest>& live) {
  if (live->ended || !live_.emplace(live->arrival, live).second) return;
  if (live->request.deadline != absl::InfiniteFuture()) {
    timers_.insert({live->request.deadline, {live->arrival, Timer::kDeadline}});
  }
  if (live->queue_deadline != absl::InfiniteFuture()) {
    timers_.insert({live->queue_deadline, {live->arrival, Timer::kQueue}});
  }
}

void EngineCore::EraseTimers(const LiveRequest& live) {
  timers_.erase({live.request.deadline, {live.arrival, Timer::kDeadline}});
  timers_.erase({live.queue_deadline, {live.arrival, Timer::kQueue}});
}

void EngineCore::Prepare(LiveRequest& live, absl::Time now) {
  if (live.ended) {  // while it was prepared
    queue_->RemoveTokens(live.request.tenant, live.queued_tokens);
    return;
  }
  // Its cancellation is under way; the text worker did nothing.
  if (absl::IsCancelled(live.prepare_status)) return;
  live.prepared = true;
  if (!live.prepare_status.ok()) {
    const auto reason = GetErrorReason(live.prepare_status);
    probe_->Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
    End(live, live.prepare_status, /*was_accepted=*/false, now);
    return;
  }
  live.live_choices = live.request.sampling.choice_count;
  for (std::int32_t i = 0; i < live.live_choices; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request = &live;
    sequence->choice = i;
    sequence->prompt_tokens = static_cast<std::uint32_t>(live.prompt.size());
    live.sequences.push_back(std::move(sequence));
  }
  Sequence& first = live.first();
  first.tokens = std::move(live.prompt);
  if (!options_.share_generated_pages) first.marked_tokens = first.tokens;
  first.keys = std::move(live.keys);
  first.tokens.reserve(first.tokens.size() +
                       static_cast<std::size_t>(std::min(live.max_tokens, 4096)));
  if (live.uses_history()) {
    for (const std::int32_t token : first.tokens) AddToHistory(first, token, /*in_output=*/false);
  }
  probe_->Accepted();
  ++waiting_;
  scheduler_.Add(&live);
}

absl::Status EngineCore::EarlyStatus(const LiveRequest& live, CancelSource source, absl::Time now,
                                     const std::string& text) const {
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
          {{"waited_ms", Millis(age)}, {"cause", live.prepared ? "queue" : "tokenize"}},
          queue_->RetryDelay());
    case CancelSource::kRevoked:
      return WithReason(absl::UnauthenticatedError("the token was revoked while the request ran"),
                        Reason::kTokenInvalid);
  }
  return absl::InternalError("unknown cause of an early end");
}

void EngineCore::EndEarly(LiveRequest& live, CancelSource source, absl::Time now,
                          const std::string& text) {
  if (live.ended) return;
  const RequestState state = live.state.load(std::memory_order_relaxed);
  ++early_ends_[static_cast<std::size_t>(state)][static_cast<std::size_t>(source)];
  const absl::Status status = EarlyStatus(live, source, now, text);
  log::Info("engine", "request ended early",
            {{"request_id", live.request.id},
             {"source", CancelSourceName(source)},
             {"state", RequestStateName(state)},
             {"output_tokens", OutputTokens(live)},
             {"detail", std::string(status.message())}});
  scheduler_.Remove(live, /*scrub=*/false);
  probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  if (live.prepared) {
    probe_->Cancelled(live.counted_running, source);
  } else {
    probe_->CancelledInPreparation(source);
  }
  End(live, status, /*was_accepted=*/true, now);
}

void EngineCore::Fail(LiveRequest& live, absl::Status status, bool scrub, absl::Time now) {
  if (live.ended) return;
  log::Error("engine", "request failed",
             {{"request_id", live.request.id},
              {"state", RequestStateName(live.state.load(std::memory_order_relaxed))},
              {"status", status.ToString()}});
  if (scrub) probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  scheduler_.Remove(live, scrub);
  probe_->ShowCache(cache_->stats(), scrub ? EvictionCause::kScrub : EvictionCause::kAllocation);
  probe_->Failed(live.counted_running, status.code());
  End(live, std::move(status), /*was_accepted=*/true, now);
}

// The last thing that the engine thread does with a request.
void EngineCore::End(LiveRequest& live, absl::Status status, bool was_accepted, absl::Time now) {
  live.ended = true;
  live.state.store(RequestState::kFinished, std::memory_order_release);
  if (live.holds_queue_slot) {
    live.holds_queue_slot = false;
    queue_->LeaveRequest(live.request.tenant);
    if (live.prepared) queue_->RemoveTokens(live.request.tenant, live.queued_tokens);
  }
  if (live.prepared && was_accepted) --(live.counted_running ? running_ : waiting_);
  EraseTimers(live);
  OutputItem& item = Emit(OutputItem::Kind::kRequestEnd, live, now);
  item.status = std::move(status);
  item.was_accepted = was_accepted;
  if (num_in_flight_ > 0) flight(num_in_flight_ - 1).ended.push_back(item.request);
  live_.erase(live.arrival);
}

absl::Status EngineCore::InternalError(absl::string_view what) {
  const std::string incident =
      absl::StrFormat("%x-%x", absl::ToUnixSeconds(clock_->Now()), next_incident_++);
  log::Error("engine", "incident", {{"incident_id", incident}, {"what", what}});
  return WithReason(absl::InternalError(absl::StrCat("engine error, incident ", incident)),
                    Reason::kEngineError, {{"incident_id", incident}});
}

OutputItem& EngineCore::Emit(OutputItem::Kind kind, LiveRequest& live, absl::Time now) {
  OutputItem& item = output_.emplace_back();
  item.kind = kind;
  const auto it = live_.find(live.arrival);
  QUIRE_CHECK(it != live_.end());
  item.request = it->second;
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
    LiveRequest& live = *live_.at(arrival);
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
    LiveRequest& live = *sequence->request;
    if (live.full_since + options_.slow_client_timeout <= now) to_fail_.push_back(&live);
  };
  for (const Sequence* sequence : scheduler_.running()) check(sequence);
  for (const Sequence* sequence : scheduler_.preempted()) check(sequence);
  // A request ends once; its other choices find it ended, and the table keeps it alive until then.
  std::sort(to_fail_.begin(), to_fail_.end(),
            [](const LiveRequest* a, const LiveRequest* b) { return a->arrival < b->arrival; });
  to_fail_.erase(std::unique(to_fail_.begin(), to_fail_.end()), to_fail_.end());
  for (LiveRequest* live : to_fail_) EndEarly(*live, CancelSource::kSlowClient, now);
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
    const std::shared_ptr<LiveRequest> live = live_.begin()->second;
    EndEarly(*live, CancelSource::kShutdown, now);
  }
}

void EngineCore::FailAll(absl::Time now) {
  while (!live_.empty()) {
    LiveRequest& live = *live_.begin()->second;
    if (live.prepared) {
      Fail(live, DeviceError(), /*scrub=*/false, now);
    } else {
      probe_->Rejected(Reason::kDeviceError);
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
  stats.cache = cache_->stats();
  stats.prompt_tokens_per_second = prompt_rate_.PerSecond(now);
  stats.generation_tokens_per_second = generation_rate_.PerSecond(now);
  stats.steps = steps_;
  stats.steps_ahead = steps_ahead_;
  stats.preemptions = probe_->preemptions();
  stats.chunked_prefills = chunked_prefills_;
  stats.max_step_sequences = max_step_sequences_;
  stats.last_step_age = now - last_step_;
  stats.early_ends = early_ends_;
  return stats;
}

PagePicture EngineCore::DescribePages() const {
  PagePicture picture;
  std::map<std::uint32_t, std::int32_t> owner_of_row;
  for (const auto& [arrival, live] : live_) {
    for (const auto& sequence : live->sequences) {
      if (!sequence->row) continue;
      owner_of_row[sequence->row->value()] =
          PagePicture::kFirstOwner + static_cast<std::int32_t>(picture.owners.size());
      picture.owners.push_back(live->request.id);
    }
  }
  for (const cache::PageUse& use : cache_->DescribePages()) {
    std::int32_t page = PagePicture::kFree;
    if (use.kind == cache::PageUse::Kind::kCached) page = PagePicture::kCached;
    if (use.kind == cache::PageUse::Kind::kUsed) {
      const auto owner = owner_of_row.find(use.row.value());
      page = use.num_rows > 1                                     ? PagePicture::kShared
             : use.num_rows == 1 && owner != owner_of_row.end() ? owner->second
                                                                 : PagePicture::kWork;
    }
    picture.pages.push_back(page);
  }
  return picture;
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
    status = live->stream->CheckIntegrity();
    if (live->ended) status = absl::InternalError("an ended request is still live");
    for (const auto& sequence : live->sequences) {
      if (num_in_flight_ > 0 || (sequence->in_flight == 0 && sequence->pending_draws == 0))
        continue;
      status = absl::InternalError(absl::StrCat("request ", live->request.id,
                                                " waits for a step although none is in flight"));
    }
  }
  if (!status.ok()) probe_->InvariantViolated();
  return status;
}

}  // namespace quire::engine
