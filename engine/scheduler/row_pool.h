#pragma once

// The batch rows, the running sequences that have rows, and the preempted sequences. All state
// changes of a sequence that allocate or free a row or pages are made here.
//
// Place:      part of Scheduler, above CacheManager.
// Invariants: see CheckIntegrity(). A row is free or belongs to one running sequence.
// Threads:    engine thread only.
// Lifetime:   the cache and the step counter outlive it; sequences stay alive while they are in it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/scheduler_policy.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_counter.h"

namespace quire::engine {

// Derives the state of `request` that other threads see from the states of its sequences.
void RefreshState(ScheduledRequest& request);
// Records the sequence's number of pages in the sequence and in its request.
void SetPages(Sequence& sequence, std::uint32_t pages);

enum class GrowResult : std::uint8_t {
  kGrown,
  kNoPages,      // the row is left out of this step, or was preempted itself
  kNeedsOutcome  // a victim would have to be preempted, but a step is in flight
};

class RowPool {
 public:
  // Number of times each transition of kSequenceTransitions was made.
  using TransitionCounts = std::array<std::int64_t, kSequenceTransitions.size()>;

  RowPool(const EngineOptions& options, const SchedulerPolicy& policy, cache::CacheManager* cache,
          const StepCounter* steps);

  // Returns the running sequences, which all have a row, in order of admission. The choices of one
  // request are in order of their indices.
  const std::vector<Sequence*>& running() const { return running_; }
  const std::vector<Sequence*>& preempted() const { return preempted_; }  // in order of admission
  std::size_t num_rows() const { return num_rows_; }
  std::size_t num_free() const { return free_rows_.size(); }
  std::size_t num_used() const { return num_rows_ - free_rows_.size(); }
  const TransitionCounts& transitions() const { return transitions_; }

  // REQUIRES: a row is free, and the sequence has none.
  void TakeRow(Sequence& sequence);
  // REQUIRES: the row of the sequence has no pages in the cache.
  void ReleaseRow(Sequence& sequence);

  // Changes the state of a sequence without touching rows or pages.
  void Enter(Sequence& sequence, SequenceState state, WaitCause cause = WaitCause::kNone);
  // Starts the prefill of a sequence that has its row and pages. The choices that wait for this
  // sequence get rows too. REQUIRES: rows are free for them, and the sequence has its admission
  // number.
  void Start(Sequence& sequence, const cache::PrefixMatch& match);
  // Allocates pages for the first `tokens` tokens. With overcommit, victims are preempted for them
  // and appended to `preempted`. In safe mode a page can be missing only while other pages are
  // being cleared, are being copied or are held by a step in flight. All of them are available
  // after the next step. If `has_step_in_flight`, no sequence may be preempted.
  GrowResult Grow(Sequence& sequence, std::uint32_t tokens, bool has_step_in_flight,
                  std::vector<Sequence*>* preempted);
  // See Scheduler.
  void Fork(ScheduledRequest& request);
  void ReleaseOutsideWindow(Sequence& sequence);
  void Finish(Sequence& sequence);
  // Frees what the sequence holds, in any state, and ends it. `invalidate`: nothing that it wrote
  // since its last finite logits may be matched in the cache again.
  void Drop(Sequence& sequence, bool invalidate);

  absl::Status CheckIntegrity() const;

 private:
  void FreePages(Sequence& sequence);
  void Preempt(Sequence& sequence);
  // Moves a sequence whose row was released from running_ to preempted_.
  void MoveToPreempted(Sequence& sequence);
  std::int64_t CountIn(SequenceState state, WaitCause cause) const;
  absl::Status CheckRow(const Sequence& sequence) const;
  absl::Status CheckTransitions() const;

  cache::CacheManager* const cache_;
  const StepCounter* const steps_;
  const AdmissionMode admission_;
  const std::int32_t max_preemptions_;
  const std::size_t num_rows_;  // max_running_sequences at start, for which the cache has memory
  std::vector<std::uint32_t> free_rows_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> preempted_;
  TransitionCounts transitions_{};
};

}  // namespace quire::engine
