#pragma once

// The step that is being planned: its rows so far, its remaining token budgets, and the maximum
// length of the next chunk.
//
// Place:      part of Scheduler; filled by DecodePlanner, PrefillPlanner and Admission.
// Invariants: see CheckIntegrity(). The budgets shrink by the tokens of every row that is added.
// Threads:    engine thread only.
// Lifetime:   the cache and the model outlive it.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/scheduler_policy.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_plan.h"
#include "engine/scheduler/step_time_model.h"

namespace quire::engine {

class StepDraft {
 public:
  StepDraft(const EngineOptions& options, const SchedulerPolicy& policy,
            const cache::CacheManager* cache, const StepTimeModel* model);

  // Starts an empty plan with the budgets of `options`, without a time target.
  void Begin(const HotOptions& options);
  // Limits the chunks that are added from now on. Infinite: there is no limit.
  void SetTimeTarget(absl::Duration target) { time_target_ = target; }

  // Adds a row for one token.
  void AddDecode(Sequence& sequence);
  void AddChunk(Sequence& sequence, std::uint32_t num_tokens);

  // Maximum number of tokens of one row in one step.
  std::uint32_t max_chunk() const { return max_chunk_; }
  // Returns the length of the next chunk of a prompt with `computed` of `total` tokens computed, or
  // 0 if the step has no room for it. `room`: number of tokens after the computed ones that have
  // pages or may get them.
  std::uint32_t ChunkTokens(std::uint32_t computed, std::uint32_t total, std::uint32_t room) const;
  // Returns the number of pages that the choices of a request copy after the chunk that ends at
  // `end`. The result is 0 unless that chunk completes the prompt, and always 0 with overcommit. In
  // safe mode the request has reserved these pages, but some free pages may still have to be
  // cleared. The chunk therefore waits until enough pages are available. No row allocates pages
  // between a plan and the fork after its step, because the next plan waits for the fork
  // (DecodePlanner::Select).
  std::uint32_t ForkPages(const Sequence& sequence, std::uint32_t end) const;
  // True if the choices of the request run separately after the chunk that ends at `end`.
  bool ForksAfter(const Sequence& sequence, std::uint32_t end) const;
  // True if enough pages and state slots are available for all forks after this step, including the
  // forks after the chunk that ends at `end`.
  bool HasRoomToFork(const Sequence& sequence, std::uint32_t end) const;

  const StepPlan& plan() const { return plan_; }
  StepPlan& plan() { return plan_; }
  // Number of tokens that can still be added to the step, and how many of them may be prompt
  // tokens.
  std::uint32_t budget() const { return budget_; }
  std::uint32_t prompt_budget() const { return prompt_budget_; }
  // Return the number of pages and of state slots that the forks after this step allocate.
  std::uint32_t fork_pages() const { return fork_pages_; }
  std::uint32_t fork_slots() const { return fork_slots_; }

  // Checks that the tokens of the rows add up to the plan's total.
  absl::Status CheckIntegrity() const;

 private:
  // The same as ForkPages, for state slots.
  std::uint32_t ForkSlots(const Sequence& sequence, std::uint32_t end) const;

  const SchedulerPolicy policy_;
  const AdmissionMode admission_;
  const cache::CacheManager* const cache_;
  const StepTimeModel* const model_;
  const std::uint32_t page_size_;
  // Maximum length of a chunk in a model with window groups. The page demand of these groups was
  // computed for this length.
  const std::uint32_t max_window_chunk_;
  StepPlan plan_;
  std::uint32_t budget_ = 0;
  std::uint32_t prompt_budget_ = 0;
  std::uint32_t max_chunk_ = 0;
  std::uint32_t fork_pages_ = 0;
  std::uint32_t fork_slots_ = 0;
  absl::Duration time_target_ = absl::InfiniteDuration();
};

}  // namespace quire::engine
