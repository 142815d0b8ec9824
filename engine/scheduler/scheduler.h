#pragma once

// Decides what each step computes: decode rows first, then prompt chunks and admissions in what is
// left of the token budget.
//
//   Plan = DecodePlanner -> StepTimeTarget -> PrefillPlanner <-> Admission, on a StepDraft
//   RowPool has the sequences with rows, Admission the requests without rows
//
// A plan may be made while the previous step is in flight. Every sequence that samples a token in
// that step is then assumed to continue, unless that token is known to be its last. No sequence is
// preempted. If the coming step depends on the outcome of the one in flight, the plan is empty.
//
// While rows decode, a step-time target limits the prompt tokens of a step. Their expected time
// must fit into the target (StepTimeTarget).
//
// Place:      between StepPipeline and CacheManager. Takes and frees pages; never runs anything.
// Invariants: see CheckIntegrity(). Its results depend only on its calls, not on a clock, the order
//             of a hash table, other threads or output streams.
// Threads:    engine thread only.
// Lifetime:   the cache outlives it; requests stay alive while they are in it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/admission.h"
#include "engine/scheduler/decode_planner.h"
#include "engine/scheduler/output_stalls.h"
#include "engine/scheduler/prefill_planner.h"
#include "engine/scheduler/row_pool.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/scheduler_policy.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_counter.h"
#include "engine/scheduler/step_draft.h"
#include "engine/scheduler/step_plan.h"
#include "engine/scheduler/step_time_model.h"
#include "engine/scheduler/step_time_target.h"

namespace quire::engine {

class Scheduler {
 public:
  Scheduler(const EngineOptions& options, cache::CacheManager* cache,
            const SchedulerPolicy& policy = {});
  // Not copyable, because its parts point to each other.
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Plans use `options` from now on.
  void SetOptions(std::shared_ptr<const HotOptions> options);

  // Adds a prepared request that fits the pool to the waiting requests. REQUIRES: its sequences
  // exist.
  void Add(ScheduledRequest* request);
  // Reports how the output of a running or preempted request is stalled. Plans leave its sequences
  // out until a later call reports kNone.
  void SetOutputStall(ScheduledRequest& request, OutputStall stall, absl::Time now);
  // Reports whether an output worker has no room for further items.
  void SetWorkerStalled(std::size_t worker, bool is_stalled) {
    stalls_.SetWorker(worker, is_stalled);
  }

  // Plans the coming step and reserves its pages. The plan is valid until the next call.
  const StepPlan& Plan(absl::Time now, bool has_step_in_flight);
  // Counts steps. StepPipeline reports their launches and ends.
  StepCounter& steps() { return steps_; }
  // Predicts the time of a step from the steps that ran.
  StepTimeModel& step_time() { return step_time_; }

  // Called when the prompt is computed. The choices run separately from then on. They share the
  // full pages of the first choice and copy its last page. In safe mode the plan has kept pages
  // available for the copies. With overcommit a choice for which there is no page is preempted.
  // REQUIRES: all choices know the prompt's tokens and keys.
  void Fork(ScheduledRequest& request) { rows_.Fork(request); }
  // Called when the first token of the choice is known and is not the last.
  void StartDecode(Sequence& sequence);
  // Called when tokens of the sequence were computed and published. Frees pages that no window
  // reads any more.
  void ReleaseOutsideWindow(Sequence& sequence) { rows_.ReleaseOutsideWindow(sequence); }
  // Called when the choice has ended by itself. Frees its pages. Published pages stay cached,
  // unless the request sets cache.skip_write.
  void Finish(Sequence& sequence);
  // Called when the request has ended, in any state. `invalidate`: its logits are not finite, so
  // pages that it wrote since its last finite logits must not be matched again.
  void Remove(ScheduledRequest& request, bool invalidate);

  bool has_work() const { return waiting() > 0 || !preempted().empty() || !running().empty(); }
  // Returns whether a step is due: a sequence could run or a request could start. Returns false if
  // all rows belong to clients that do not read. The requests of these clients keep their rows and
  // pages for at most slow_client_timeout, and waiting requests wait until then.
  bool awaits_step() const;
  std::int32_t waiting() const { return static_cast<std::int32_t>(admission_.num_waiting()); }
  const Admission& admission() const { return admission_; }
  const std::vector<Sequence*>& running() const { return rows_.running(); }
  const std::vector<Sequence*>& preempted() const { return rows_.preempted(); }

  using TransitionCounts = RowPool::TransitionCounts;
  const TransitionCounts& transitions() const { return rows_.transitions(); }

  absl::Status CheckIntegrity() const;

 private:
  void MarkStalled();
  bool PlanDecodes(bool has_step_in_flight);

  cache::CacheManager* const cache_;
  std::shared_ptr<const HotOptions> options_;  // never null
  StepCounter steps_;
  OutputStalls stalls_;
  StepTimeModel step_time_;
  StepTimeTarget time_target_;
  StepDraft draft_;
  RowPool rows_;
  Admission admission_;
  DecodePlanner decodes_;
  PrefillPlanner prefills_;
};

}  // namespace quire::engine
