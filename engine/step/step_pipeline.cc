#include "engine/step/step_pipeline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"

namespace quire::engine {

StepPipeline::StepPipeline(std::int32_t max_steps_in_flight, const Parts& parts)
    : cache_(parts.cache),
      runner_(parts.runner),
      scheduler_(parts.scheduler),
      lifecycle_(parts.lifecycle),
      collector_(parts.collector),
      masks_(parts.masks),
      meter_(parts.meter),
      clock_(parts.clock),
      heartbeat_(clock_),
      builder_(cache_),
      max_in_flight_(static_cast<std::size_t>(
          std::clamp(std::min(max_steps_in_flight, runner_->max_steps_in_flight()), 1,
                     static_cast<std::int32_t>(kMaxStepsInFlight)))) {}

bool StepPipeline::Step(absl::Time now) {
  lifecycle_->FreeEnded();
  if (!fatal_error_.ok()) return false;
  FinishSampling();
  masks_->AwaitNextSamples(scheduler_->running(), expected_);
  const bool has_ended = lifecycle_->EndMasked(now);
  masks_->HoldRows(scheduler_->running(), scheduler_->preempted());
  const absl::Time start = clock_->Now();
  const bool has_step_in_flight = num_in_flight_ > 0;
  lifecycle_->ReportStalls(now);
  plan_ = &scheduler_->Plan(now, has_step_in_flight);
  lifecycle_->PublishPlan(*plan_, now);
  if (!plan_->empty()) {
    Launch(start, clock_->Now());
    return true;
  }
  if (has_step_in_flight) {
    CollectOldest();
    return true;
  }
  if (ScheduledRequest* const stuck = scheduler_->admission().stuck_request(); stuck != nullptr) {
    failing_requests_.assign(1, stuck);
    lifecycle_->FailEach(&failing_requests_, "a request is blocked although no sequence runs", now);
    return true;
  }
  if (RunCacheWork(now)) return true;
  if (!masks_->AwaitAny(scheduler_->running(), scheduler_->preempted())) return has_ended;
  heartbeat_.Beat();
  return true;
}

void StepPipeline::Launch(absl::Time start, absl::Time planned) {
  InFlightStep& next = flight(num_in_flight_);
  next.plan = *plan_;
  next.number = scheduler_->steps().Launch();
  next.start = start;
  next.planned = planned;
  next.expected = expected_ = scheduler_->step_time().Expect(next.plan.work);
  builder_.Fill(&next);
  next.batch.heartbeat = &heartbeat_;
  next.launched = clock_->Now();
  next.launch_error = runner_->Run(next.batch);
  overlap_steps_ += num_in_flight_ > 0 ? 1 : 0;
  ++num_in_flight_;
  has_late_samples_ = next.launch_error.ok() && next.batch.has_late_samples();
  // No step may be launched after one that was refused.
  if (!next.launch_error.ok()) CollectAll();
  if (num_in_flight_ >= max_in_flight_) CollectOldest();
}

// Computes the late samples of the step that was launched last.
void StepPipeline::FinishSampling() {
  if (!has_late_samples_) return;
  has_late_samples_ = false;
  QUIRE_CHECK(num_in_flight_ == 1);
  InFlightStep& step = flight(0);
  masks_->AwaitLateSamples(step);
  lifecycle_->EndMasked(clock_->Now());
  masks_->CompleteLateSamples(builder_, &step);
  runner_->SampleLate(step.batch);
}

void StepPipeline::CollectAll() {
  while (num_in_flight_ > 0) CollectOldest();
}

// Runs the queued clears and copies in a step without rows. Pages that wait to be cleared are not
// available, and nothing else would clear them while no row runs.
bool StepPipeline::RunCacheWork(absl::Time now) {
  InFlightStep& next = flight(0);
  next.plan.Clear();
  if (!scheduler_->has_work() || !builder_.FillCacheWork(&next)) return false;
  next.number = scheduler_->steps().Launch();
  absl::Status error = runner_->Run(next.batch);
  if (error.ok()) error = runner_->Collect().status();
  cache_->CompleteStep();
  scheduler_->steps().Complete();
  if (error.ok()) {
    heartbeat_.Beat();
  } else if (HasReason(error, Reason::kDeviceLost)) {
    LoseDevice(error);
  } else {
    FailStep(next, error, now);
  }
  return true;
}

void StepPipeline::CollectOldest() {
  if (num_in_flight_ == 1) FinishSampling();
  const InFlightStep& oldest = flight(0);
  absl::Status error = oldest.launch_error;
  const runtime::StepResult* result = nullptr;
  if (error.ok()) {
    const absl::StatusOr<const runtime::StepResult*> answer = runner_->Collect();
    error = answer.status();
    if (error.ok()) result = *answer;
  }
  const absl::Time collected = clock_->Now();
  if (result != nullptr) heartbeat_.Beat(collected);
  if (HasReason(error, Reason::kDeviceLost)) {
    LoseDevice(error);
    return;
  }
  oldest_index_ = (oldest_index_ + 1) % kMaxStepsInFlight;
  --num_in_flight_;
  const bool is_poisoned = result != nullptr && collector_->InvalidateEnded(oldest, *result);
  cache_->CompleteStep(is_poisoned);
  if (is_poisoned) meter_->PublishCacheStats(EvictionCause::kInvalidate);
  scheduler_->steps().Complete();
  if (result == nullptr) {
    FailStep(oldest, error, collected);
  } else {
    collector_->Collect(oldest, *result, collected);
  }
  const absl::Duration wall = meter_->CountStep(oldest, collected);
  if (oldest.launch_error.ok()) scheduler_->step_time().Learn(oldest.plan.work, wall);
}

// No further call of the runner would succeed, so the steps in flight are dropped.
void StepPipeline::LoseDevice(const absl::Status& error) {
  log::Error("engine", "device lost", {{"status", error.ToString()}});
  fatal_error_ = error;
  has_late_samples_ = false;
  for (; num_in_flight_ > 0; --num_in_flight_) {
    cache_->CompleteStep();
    scheduler_->steps().Complete();
  }
  for (const auto& [arrival, live] : lifecycle_->live()) {
    for (const auto& sequence : live->sequences) {
      sequence->in_flight = 0;
      sequence->samples_in_flight = 0;
    }
  }
}

// Called for a step that computed nothing. Requests whose page copies were part of the step have
// lost those pages, too.
void StepPipeline::FailStep(const InFlightStep& flight, const absl::Status& error, absl::Time now) {
  log::Error("engine", "step failed", {{"status", error.ToString()}});
  builder_.KeepClears(flight);
  failing_requests_.clear();
  flight.plan.ForEachRow([&](const PlannedRow& row) {
    row.sequence->in_flight -= row.num_tokens;
    if (!row.sequence->finished()) failing_requests_.push_back(row.sequence->request);
  });
  for (Sequence* owner : flight.sample_owners) --owner->samples_in_flight;
  for (const auto& [arrival, live] : lifecycle_->live()) {
    const bool is_copied =
        live->copy_steps.first <= flight.number && flight.number <= live->copy_steps.last;
    if (is_copied) failing_requests_.push_back(live.get());
  }
  lifecycle_->FailEach(&failing_requests_, error.message(), now);
}

absl::Status StepPipeline::CheckIntegrity() const {
  if (cache_->steps_in_flight() != num_in_flight_) {
    return absl::InternalError(absl::StrCat(
        num_in_flight_, " steps are in flight, but the cache counts ", cache_->steps_in_flight()));
  }
  const StepCounter& steps = scheduler_->steps();
  if (steps.launched() - steps.completed() != num_in_flight_) {
    return absl::InternalError(absl::StrCat(num_in_flight_, " steps are in flight, but ",
                                            steps.launched(), " were launched and ",
                                            steps.completed(), " have completed"));
  }
  if (has_late_samples_ && num_in_flight_ == 0) {
    return absl::InternalError("samples wait for masks although no step is in flight");
  }
  for (const auto& [arrival, live] : lifecycle_->live()) {
    for (const auto& sequence : live->sequences) {
      if (num_in_flight_ > 0 || (sequence->in_flight == 0 && sequence->samples_in_flight == 0))
        continue;
      return absl::InternalError(absl::StrCat("request ", live->request.id,
                                              " waits for a step although none is in flight"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
