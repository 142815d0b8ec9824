#pragma once

// Plans the prompt chunks of a step. Decides which prompts share the budget that the decode rows
// leave, in which order, and which requests are admitted between them.
//
// The prompts of one tenant are ordered by PromptRank: short prompts precede long ones. The first
// prompts of all tenants precede the second ones, so that the priorities of one tenant do not delay
// another. Every SchedulerPolicy::steps_per_oldest_first steps, the oldest prompt is served first,
// so that it progresses whatever else arrives.
//
// Place:      part of Scheduler; the last planner of a step.
// Invariants: its results depend only on its calls.
// Threads:    engine thread only.
// Lifetime:   the objects in Parts outlive it.

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/scheduler/admission.h"
#include "engine/scheduler/row_pool.h"
#include "engine/scheduler/scheduler_policy.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_draft.h"

namespace quire::engine {

class PrefillPlanner {
 public:
  struct Parts {
    cache::CacheManager* cache;
    RowPool* rows;
    Admission* admission;
    StepDraft* draft;
  };
  PrefillPlanner(const SchedulerPolicy& policy, const Parts& parts);

  // Reserves pages of layer groups with a window for the chunks that may fit into the step. Other
  // groups have pages for the whole prompt from admission on. Called before any row is planned.
  // Returns the same as DecodePlanner::TakePages.
  bool TakePages(bool has_step_in_flight);
  // Adds chunks and admissions to the draft.
  void Plan(absl::Time now);

 private:
  void OrderPrompts();
  std::uint32_t TakeChunkPages(Sequence& sequence, std::uint32_t chunk, bool has_step_in_flight);
  bool serves_oldest_first() const {
    return prompt_steps_ % steps_per_oldest_first_ == steps_per_oldest_first_ - 1;
  }

  const std::uint64_t steps_per_oldest_first_;
  cache::CacheManager* const cache_;
  RowPool* const rows_;
  Admission* const admission_;
  StepDraft* const draft_;
  std::vector<Sequence*> prompts_;  // prompts that are being computed, in step order
  std::uint64_t prompt_steps_ = 0;  // steps so far that computed prompts
  bool needs_outcome_ = false;      // set by TakePages: collect the step in flight first
};

}  // namespace quire::engine
