#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace quire::engine {

Scheduler::Scheduler(const EngineOptions& options, cache::CacheManager* cache,
                     const SchedulerPolicy& policy)
    : cache_(cache),
      options_(std::make_shared<const HotOptions>(options)),
      time_target_(policy, &step_time_),
      draft_(options, policy, cache, &step_time_),
      rows_(options, policy, cache, &steps_),
      admission_(options.admission, options_,
                 {.cache = cache, .rows = &rows_, .draft = &draft_, .stalls = &stalls_}),
      decodes_(cache->page_size(), &rows_, &draft_),
      prefills_(policy,
                {.cache = cache, .rows = &rows_, .admission = &admission_, .draft = &draft_}) {}

void Scheduler::SetOptions(std::shared_ptr<const HotOptions> options) {
  options_ = std::move(options);
  admission_.SetOptions(options_);
}

void Scheduler::Add(ScheduledRequest* request) {
  admission_.Add(request);
}

void Scheduler::SetOutputStall(ScheduledRequest& request, OutputStall stall, absl::Time now) {
  request.output_stall = stall;
  if (stall != OutputStall::kClient) {
    request.client_stalled_since = absl::InfiniteFuture();
  } else if (request.client_stalled_since == absl::InfiniteFuture()) {
    request.client_stalled_since = now;
  }
}

const StepPlan& Scheduler::Plan(absl::Time now, bool has_step_in_flight) {
  draft_.Begin(*options_);
  admission_.BeginStep();
  MarkStalled();
  const StepPlan& plan = draft_.plan();
  if (!PlanDecodes(has_step_in_flight)) {
    draft_.plan().Clear();
    return plan;
  }
  const StepLoad load{.has_waiting_stream = decodes_.has_waiting_stream(),
                      .has_several_tenants = admission_.has_several_tenants(),
                      .num_prompts = decodes_.num_prompts() + admission_.num_waiting(),
                      .num_decodes = plan.decodes.size(),
                      .decodes = plan.work};
  draft_.SetTimeTarget(time_target_.Choose(*options_, load, now));
  prefills_.Plan(now);
  return plan;
}

void Scheduler::MarkStalled() {
  const auto mark = [&](Sequence* sequence) {
    ScheduledRequest& request = *sequence->request;
    const bool is_stalled = request.output_stall != OutputStall::kNone || sequence->awaits_mask ||
                            stalls_.IsWorkerStalled(request);
    if (is_stalled == sequence->is_stalled) return;
    sequence->is_stalled = is_stalled;
    RefreshState(request);
  };
  std::ranges::for_each(running(), mark);
  std::ranges::for_each(preempted(), mark);
}

// Returns false if the step in flight must be collected first.
bool Scheduler::PlanDecodes(bool has_step_in_flight) {
  if (!decodes_.Select() || !decodes_.TakePages(has_step_in_flight)) return false;
  if (cache_->demand().has_windows() && !prefills_.TakePages(has_step_in_flight)) return false;
  decodes_.AddRows(admission_);
  return true;
}

void Scheduler::StartDecode(Sequence& sequence) {
  rows_.Enter(sequence, SequenceState::kDecode);
  RefreshState(*sequence.request);
}

void Scheduler::Finish(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  rows_.Finish(sequence);
  --request.live_choices;
  admission_.EndChoice(request);
  RefreshState(request);
}

void Scheduler::Remove(ScheduledRequest& request, bool invalidate) {
  for (const auto& sequence : request.sequences) rows_.Drop(*sequence, invalidate);
  admission_.Leave(request);
}

bool Scheduler::awaits_step() const {
  const auto is_read = [](const Sequence* sequence) {
    return sequence->request->client_stalled_since == absl::InfiniteFuture();
  };
  if (!running().empty()) return std::ranges::any_of(running(), is_read);
  return admission_.AnyMayStart() || std::ranges::any_of(preempted(), is_read);
}

absl::Status Scheduler::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(rows_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(draft_.CheckIntegrity());
  return admission_.CheckIntegrity();
}

}  // namespace quire::engine
