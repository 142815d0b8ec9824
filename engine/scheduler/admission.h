#pragma once

// Decides which waiting or preempted request starts next, and ensures that its pages fit.
//
// Order: preempted sequences by age, then the head of WaitingRequests. A head that is blocked by
// missing rows or pages blocks the queue, so that a large request cannot starve. A head whose
// output worker is stalled blocks the queue too. Preempted sequences that are stalled are skipped,
// and so are tenants at their limit of running requests.
//
//   safe:        a request is admitted if the pool has enough pages for this and all other admitted
//                requests, even if each of them generates max_tokens tokens. No sequence ever loses
//                a page.
//   overcommit:  a request is admitted if its prompt and one more page fit. If a row cannot grow
//                later, a victim is preempted (preemption.h) and its tokens are computed again.
//
// Place:      part of Scheduler; called by PrefillPlanner between the chunks of running prompts.
// Invariants: see CheckIntegrity(). Its results depend only on its calls.
// Threads:    engine thread only.
// Lifetime:   the objects in Parts outlive it; requests stay alive while they are in it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/output_stalls.h"
#include "engine/scheduler/row_pool.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/step_draft.h"
#include "engine/scheduler/tenant_turns.h"
#include "engine/scheduler/waiting_requests.h"

namespace quire::engine {

// Sums over the requests that wait.
struct WaitingWork {
  std::int64_t uncached_tokens = 0;  // prompt tokens that are not in the prefix cache
  std::int64_t choices = 0;
  std::int64_t max_output_tokens = 0;  // total over all choices
};

class Admission {
 public:
  struct Parts {
    cache::CacheManager* cache;
    RowPool* rows;
    StepDraft* draft;
    const OutputStalls* stalls;
  };
  Admission(AdmissionMode mode, std::shared_ptr<const HotOptions> options, const Parts& parts);

  void SetOptions(std::shared_ptr<const HotOptions> options);
  // Adds a prepared request that fits the pool to the waiting requests.
  void Add(ScheduledRequest* request);
  void BeginStep() { stuck_request_ = nullptr; }
  // Admits requests in order while they precede the prompt `next`. If `next` is null, admits
  // requests while possible. Returns false if no further request can be admitted in this step.
  bool AdmitBefore(const Sequence* next, absl::Time now);
  // Called when a choice has ended by itself. Releases the reservation of the pages that only this
  // choice may use. REQUIRES: live_choices does not count the choice any more.
  void EndChoice(ScheduledRequest& request);
  // Called when the request has ended, in any state.
  void Leave(ScheduledRequest& request);

  std::size_t num_waiting() const { return waiting_requests_.size(); }
  const WaitingWork& waiting_work() const { return waiting_work_; }
  bool AnyMayStart() const { return waiting_requests_.AnyMayStart(); }
  bool has_several_tenants() const { return tenants_.size() > 1; }
  // Returns the request that is blocked although no sequence runs, or null. Such a request
  // indicates a bug, and the caller fails only this request.
  ScheduledRequest* stuck_request() const { return stuck_request_; }
  // Number of times admission of the head of the queue failed for lack of pages.
  std::int64_t blocked_admissions() const { return blocked_admissions_; }

  absl::Status CheckIntegrity() const;

 private:
  enum class Result : std::uint8_t { kAdmitted, kNoTokens, kBlocked };
  // The last attempt that found no pages. It is repeated when the cache has changed, or when the
  // step has room for fewer tokens of the prompt, which need fewer pages.
  struct BlockedAttempt {
    const Sequence* sequence = nullptr;
    std::uint64_t cache_changes = 0;
    std::uint32_t matched_tokens = 0;
    std::uint32_t chunk = 0;
    std::uint32_t fork_pages = 0;
    std::uint32_t fork_slots = 0;
  };

  void CountWaiting(const ScheduledRequest& request, std::int64_t sign);
  bool HasRows(std::size_t rows) const;
  bool IsStillBlocked(const Sequence& sequence) const;
  Result TryAdmit(Sequence& sequence);
  void Start(Sequence& sequence, const cache::PrefixMatch& match);
  bool TakePages(Sequence& sequence, const cache::PrefixMatch& match, std::uint32_t chunk);
  bool FitsWithGrowth(const Sequence& sequence) const;
  absl::Status CheckReservations() const;

  const AdmissionMode mode_;
  std::shared_ptr<const HotOptions> options_;
  cache::CacheManager* const cache_;
  RowPool* const rows_;
  StepDraft* const draft_;
  const OutputStalls* const stalls_;
  WaitingRequests waiting_requests_;
  WaitingWork waiting_work_;
  TenantTurns tenants_;
  std::uint64_t next_admission_ = 1;
  std::uint32_t reserved_pages_ = 0;  // safe mode
  ScheduledRequest* stuck_request_ = nullptr;
  BlockedAttempt blocked_attempt_;
  std::int64_t blocked_admissions_ = 0;
};

}  // namespace quire::engine
