#pragma once

// Decides, step by step, who runs: decode rows first, then chunks of prompts, the shortest
// remainder first, with new admissions among them while budget, rows and pages last. In every
// fourth step the oldest prompt comes first, so that one of n chunks ends within 4 n steps as soon
// as it is the oldest, whatever else comes.
//
//   safe:        a request is admitted when the pages of all admitted requests at their limits, its
//                own included, fit together. No sequence ever loses a page.
//   overcommit:  it is admitted when its prompt and one page more fit. A row that cannot grow later
//                takes the pages of a victim (preemption.h), which is computed again.
//
// The pages of a prompt are taken with its admission. Layer groups with a window never hold a whole
// prompt: there those of each chunk are taken before its step is planned.
//
// A plan may be made while the step before it is in flight ("ahead"): every sequence in it that
// samples a token is taken to go on, unless that token is its last whatever it is. No sequence
// is preempted then, and where the coming step needs the outcome of the one in flight, the plan
// says so instead.
//
// While rows decode, a step-time target bounds the prompt tokens of a step by the time that they
// are expected to take (step_time_model.h). The first prompt of a step gets 8 even so.
//
// Order of admission: preempted sequences by age, then the tenants in turn (TenantRequests::order),
// the requests of each by (priority - steps aged, deadline, class of length, arrival). The first
// that is blocked, or whose output worker is behind, blocks the rest; one whose reader is behind
// steps aside, and so does one whose tenant has as many running requests as it may.
//
// Place:      between EngineCore and CacheManager. Takes and frees pages; never runs anything.
// Invariants: CheckIntegrity(). A function of its calls: no clock, no hash order, no other thread.
// Threads:    engine thread only.
// Lifetime:   options and cache outlive it; requests stay alive while they are in it. Options may
//             change between two plans, within what engine.h allows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_plan.h"
#include "engine/scheduler/step_time_model.h"
#include "engine/scheduler/waiting_requests.h"

namespace quire::engine {

class Scheduler {
 public:
  Scheduler(const EngineOptions& options, cache::CacheManager* cache);

  // A request that is prepared and fits the pool. REQUIRES: its sequences are made.
  void Add(ScheduledRequest* request);

  // The options have new values.
  void OptionsChanged();

  // Plans the coming step and takes the pages for it. Valid until the next call. `ahead`: a step is
  // in flight.
  const StepPlan& Plan(absl::Time now, bool ahead);
  // A step begins, with the number that is returned; the oldest one has ended, well or not.
  std::uint64_t StepLaunched() { return ++launched_; }
  void StepCompleted() { ++completed_; }
  // What a step of `work` is expected to take, zero while that is not known, and what it took.
  absl::Duration PredictStep(const StepWork& work) const {
    return step_time_.Knows(work) ? step_time_.Predict(work) : absl::ZeroDuration();
  }
  void LearnStepTime(const StepWork& work, absl::Duration time) { step_time_.Learn(work, time); }

  // The prompt is computed: from here on the choices go on alone. The others share the first one's
  // full pages and get a copy of the last. In safe mode the plan has left the pages for that; with
  // overcommit a choice for which there is no page is preempted. REQUIRES: all choices know the
  // prompt's tokens and keys.
  void Fork(ScheduledRequest& request);

  // The first token of the choice is known, and it is not the last.
  void StartDecode(Sequence& sequence);

  // The sequence has computed more, and published it: what no window reaches any more goes back.
  void ReleaseOutsideWindow(Sequence& sequence);

  // The sequence has ended: its pages go back, findable unless the request wrote nothing to the
  // cache.
  void Finish(Sequence& sequence);
  // The request is gone, from any state. `invalidate`: its logits are not finite, so nothing that
  // it wrote since it had finite ones may be found again.
  void Remove(ScheduledRequest& request, bool invalidate);

  std::int32_t waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  std::int64_t waiting_uncached_tokens() const { return waiting_uncached_tokens_; }
  // Of the requests that wait: their choices, and the tokens that these may have at most.
  std::int64_t waiting_choices() const { return waiting_choices_; }
  std::int64_t waiting_output_tokens() const { return waiting_output_tokens_; }
  bool has_work() const { return !waiting_.empty() || !preempted_.empty() || !running_.empty(); }
  // Whether the next step needs nothing from outside the engine: a sequence could run, or a request
  // start. False where all that has rows belongs to clients that do not read: it keeps rows and
  // pages, so what waits behind it waits for them, too, for slow_client_timeout at most.
  bool awaits_step() const;
  // In order of admission; with a row.
  const std::vector<Sequence*>& running() const { return running_; }
  const std::vector<Sequence*>& preempted() const { return preempted_; }
  // The request that is blocked although no sequence runs, if any: a defect, which must cost one
  // request only.
  ScheduledRequest* stuck() const { return stuck_; }
  // How often the first in line asked the cache for pages and found none.
  std::int64_t blocked_admissions() const { return blocked_admissions_; }
  // Whether the output of this request has room; set by the core before each Plan.
  void SetOutputReady(std::function<bool(const AcceptedRequest&)> is_ready) {
    is_output_ready_ = std::move(is_ready);
  }

  // How often each transition of kSequenceTransitions was made.
  using TransitionCounts = std::array<std::int64_t, kSequenceTransitions.size()>;
  const TransitionCounts& transitions() const { return transitions_; }

  absl::Status CheckIntegrity() const;

 private:
  enum class Admission : std::uint8_t { kAdmitted, kNoTokens, kBlocked };
  // The first in line found no pages: it asks again when the cache has changed, or when a step has
  // room for fewer of its tokens, which need fewer pages.
  struct Blocked {
    const Sequence* sequence = nullptr;
    std::uint64_t cache_changes = 0;
    std::uint32_t matched_tokens = 0;
    std::uint32_t chunk = 0;
    std::uint32_t fork_pages = 0;
  };

  bool IsOutputReady(const ScheduledRequest& request) const {
    return !is_output_ready_ || is_output_ready_(*request.accepted);
  }

  // The plan of a step: scheduler.cc.
  void MarkSkips(absl::Time now);
  bool CanDecode(const Sequence& sequence) const;
  bool NeedsOutcome(const Sequence& sequence) const;
  void PlanDecodes(bool ahead);
  void GrowPrompts(bool ahead);
  std::uint32_t GrowPrompt(Sequence& sequence, std::uint32_t chunk, bool ahead);
  bool Grow(Sequence& sequence, std::uint32_t tokens, bool ahead);
  absl::Duration StepTimeTarget(absl::Time now) const;
  std::uint32_t ChunkLimit() const;
  std::uint32_t ChunkTokens(std::uint32_t computed, std::uint32_t total, std::uint32_t room) const;
  std::uint32_t ForkPages(const Sequence& sequence, std::uint32_t end) const;
  void AddChunk(Sequence& sequence, std::uint32_t num_tokens);
  // Of the prompts of one tenant, what is less is served first.
  struct PromptRank {
    std::int64_t level = 0;          // priority, less intervals waited before the admission
    std::uint32_t length_class = 0;  // of the tokens left to compute
    auto operator<=>(const PromptRank&) const = default;
  };
  static PromptRank RankOf(const Sequence& sequence);
  static bool ComesBefore(const ScheduledRequest& request, const PromptRank& rank,
                          const Sequence& sequence);
  void OrderPrompts();
  bool IsStepOfTheOldest() const;
  void PlanPrompts(absl::Time now);

  // Admission: scheduler_admission.cc.
  std::int32_t MaxRunning(const std::string& tenant) const;
  void LeaveTenant(ScheduledRequest& request);
  bool AdmitBefore(const Sequence* next, absl::Time now);
  void CountWaiting(const ScheduledRequest& request, std::int64_t by);
  bool HasRows(std::size_t rows) const;
  bool IsStillBlocked(const Sequence& sequence) const;
  void NoteBlocked(ScheduledRequest* request);
  cache::PrefixMatch MatchPrefix(const Sequence& sequence) const;
  Admission TryAdmit(Sequence& sequence);
  void Start(Sequence& sequence, const cache::PrefixMatch& match);
  bool TakePages(Sequence& sequence, const cache::PrefixMatch& match, std::uint32_t chunk);
  bool FitsBesides(const Sequence& sequence) const;

  // Moves between states, with rows and pages: scheduler_transitions.cc.
  void Enter(Sequence& sequence, SequenceState state, WaitCause cause = WaitCause::kNone);
  void InsertByAdmission(std::vector<Sequence*>& list, Sequence* sequence);
  void TakeRow(Sequence& sequence);
  void ReleaseRow(Sequence& sequence);
  void SetPages(Sequence& sequence, std::uint32_t pages);
  void NoteCopy(ScheduledRequest& request);
  bool HasPendingCopy(const ScheduledRequest& request) const {
    return request.last_copy_step > completed_;
  }
  void GivePagesBack(Sequence& sequence);
  void Preempt(Sequence& sequence);
  void EndChoice(Sequence& sequence);

  // scheduler_check.cc
  std::int64_t Balance(SequenceState state, WaitCause cause) const;
  absl::Status CheckTransitions() const;
  absl::Status CheckReservations() const;

  const EngineOptions& options_;
  cache::CacheManager* const cache_;
  const std::uint32_t page_size_;
  const std::uint32_t max_window_chunk_;  // MaxChunkTokens of the options at the start
  TransitionCounts transitions_{};
  StepPlan plan_;
  WaitingRequests waiting_;
  std::map<std::string, TenantRequests> tenants_;  // that have a request here
  std::vector<Sequence*> preempted_;               // by admission
  std::vector<Sequence*> running_;                 // by admission, then choice
  std::vector<Sequence*> scratch_;
  std::vector<Sequence*> prompts_;  // that are being computed, in the order of the step
  std::uint64_t prompt_steps_ = 0;  // steps so far that computed prompts
  std::uint32_t num_rows_ = 0;      // max_running_sequences at first; rows have their memory
  std::vector<std::uint32_t> free_rows_;
  std::uint64_t next_admission_ = 1;
  std::uint64_t next_turn_ = 1;       // of a tenant
  std::uint32_t reserved_pages_ = 0;  // safe mode
  std::int64_t waiting_uncached_tokens_ = 0;
  std::int64_t waiting_choices_ = 0;
  std::int64_t waiting_output_tokens_ = 0;
  std::uint32_t budget_ = 0;         // tokens left in the step being planned
  std::uint32_t prompt_budget_ = 0;  // of those, for prompts
  std::uint32_t fork_pages_ = 0;     // that the forks after the step being planned will take
  StepTimeModel step_time_;
  absl::Duration time_target_;  // of the step being planned
  // Several tenants have requests, or had them lately.
  absl::Time shared_until_ = absl::InfinitePast();
  std::size_t num_prompts_ = 0;  // that run or wait, with tokens left to compute
  bool stream_waits_ = false;    // for the step being planned, beside those whose prompts are in it
  std::uint64_t launched_ = 0;   // steps
  std::uint64_t completed_ = 0;
  bool must_wait_ = false;
  ScheduledRequest* stuck_ = nullptr;
  Blocked blocked_;
  std::int64_t blocked_admissions_ = 0;
  std::function<bool(const AcceptedRequest&)> is_output_ready_;
};

// Shows `request` in the state that its sequences are in.
void RefreshState(ScheduledRequest& request);

}  // namespace quire::engine
