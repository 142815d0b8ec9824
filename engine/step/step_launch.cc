// From a plan to a step on its way: what is launched, and when the oldest one is collected.

#include <algorithm>

#include "base/error_reason.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_core.h"

namespace quire::engine {

bool EngineCore::Step(absl::Time now) {
  ended_.clear();
  if (!fatal_.ok()) return false;
  FinishSampling();
  const bool has_ended = HandleMasks(now);
  const absl::Time start = clock_->Now();
  const bool ahead = num_in_flight_ > 0;
  plan_ = &scheduler_.Plan(now, ahead);
  StartPlanned(now);
  if (!plan_->empty()) {
    Launch(start, clock_->Now());
    return true;
  }
  if (ahead) {
    CollectOldest();
    return true;
  }
  if (scheduler_.stuck() != nullptr) {
    Fail(*scheduler_.stuck(), InternalError("a request is blocked although no sequence runs"),
         /*invalidate=*/false, now);
    return true;
  }
  return RunCacheWork(now) || AwaitMasks() || has_ended;
}

// Tells everybody what the plan has changed, before the step runs.
void EngineCore::StartPlanned(absl::Time now) {
  for (const Sequence* sequence : plan_->preempted) {
    probe_->Preempted();
    RefreshGauge(*sequence->request);
  }
  for (ScheduledRequest* live : plan_->started) {
    live->holds_queue_slot = false;
    queue_->LeaveRequest(live->request.tenant);
    queue_->RemoveTokens(live->request.tenant, live->prompt.queued_tokens);
    const std::int32_t queried =
        live->request.reads_cache() ? static_cast<std::int32_t>(live->first().prompt_tokens) : 0;
    probe_->PrefixLookup(queried, live->cached_tokens);
    probe_->ObserveQueue(now - live->request.accept_time);
    StartMasks(*live);
    const auto& constraint = live->prompt.mask_rules.constraint;
    OutputItem& item = Emit(OutputItem::Kind::kStarted, *live, now);
    item.start = std::make_unique<OutputItem::Start>(
        OutputItem::Start{.cached_tokens = live->cached_tokens,
                          .max_tokens = live->prompt.max_tokens,
                          .opens_reasoning = live->prompt.opens_reasoning,
                          .text_start = std::move(live->prompt.answer_start),
                          .prompt_text = std::move(live->prompt.echo_text),
                          .prompt_token_ids = std::move(live->prompt.echo_ids),
                          .unenforced = constraint == nullptr ? std::vector<std::string>()
                                                              : constraint->unenforced()});
  }
  std::uint32_t expired = 0;
  auto check = [&](const Sequence& sequence, std::uint32_t tokens) {
    RefreshGauge(*sequence.request);
    if (sequence.request->request.deadline <= now) expired += tokens;
  };
  for (const PlannedDecode& decode : plan_->decodes) check(*decode.sequence, kDecodeTokens);
  for (const PlannedPrefill& prefill : plan_->prefills) {
    check(*prefill.sequence, prefill.num_tokens);
  };
  if (expired > 0) probe_->ExpiredTokens(expired);
}

void EngineCore::Launch(absl::Time start, absl::Time planned) {
  InFlightStep& next = flight(num_in_flight_);
  next.plan = *plan_;
  next.number = scheduler_.StepLaunched();
  next.start = start;
  next.planned = planned;
  next.expected = scheduler_.PredictStep(next.plan.work);
  builder_.Fill(&next);
  next.batch.heartbeat = &heartbeat_;
  next.launched = clock_->Now();
  next.launch_error = runner_->Run(next.batch);
  overlap_steps_ += num_in_flight_ > 0 ? 1 : 0;
  ++num_in_flight_;
  has_late_samples_ = next.launch_error.ok() && next.batch.has_late_samples();
  // Nothing may build on a step that was refused.
  if (!next.launch_error.ok()) Settle();
  if (num_in_flight_ >= max_in_flight_) CollectOldest();
}

void EngineCore::Settle() {
  while (num_in_flight_ > 0) CollectOldest();
}

// Pages that wait to be cleared are not available; without rows to run, nothing else would clear
// them.
bool EngineCore::RunCacheWork(absl::Time now) {
  InFlightStep& next = flight(0);
  next.plan.Clear();
  if (!scheduler_.has_work() || !builder_.FillCacheWork(&next)) return false;
  next.number = scheduler_.StepLaunched();
  absl::Status error = runner_->Run(next.batch);
  if (error.ok()) error = runner_->Collect().status();
  cache_->CompleteStep();
  scheduler_.StepCompleted();
  if (error.ok()) {
    heartbeat_.Beat();
  } else if (HasReason(error, Reason::kDeviceLost)) {
    LoseDevice(error);
  } else {
    FailStep(next, error, now);
  }
  return true;
}

}  // namespace quire::engine
