#pragma once

// The engine thread's state of a request: its prompt, its choices, and what it holds of the
// scheduler's and the cache's.
//
// Place:      between EngineCore, Scheduler and BatchBuilder.
// Invariants: live_choices counts the sequences that are not kFinished, until the request has
//             ended; reserved_pages > 0 only in safe mode while it runs.
// Threads:    engine thread only.
// Lifetime:   from its first signal until it has ended and no step in flight names it.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/request/accepted_request.h"
#include "engine/request/prepared_prompt.h"
#include "engine/request/request.h"
#include "engine/request/tenant_limits.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

struct ScheduledRequest {
  explicit ScheduledRequest(std::shared_ptr<AcceptedRequest> shared)
      : accepted(std::move(shared)), request(accepted->request), arrival(accepted->arrival) {
    for (std::int32_t i = 0; i < request.sampling.choice_count; ++i) {
      sequences.push_back(std::make_unique<Sequence>());
      sequences.back()->request = this;
      sequences.back()->choice = i;
    }
    live_choices = request.sampling.choice_count;
  }
  ScheduledRequest(const ScheduledRequest&) = delete;
  ScheduledRequest& operator=(const ScheduledRequest&) = delete;

  const std::shared_ptr<AcceptedRequest> accepted;
  const Request& request;       // of `accepted`
  const std::uint64_t arrival;  // of `accepted`

  PreparedPrompt prompt;  // once it is prepared; tokens and keys are in the first sequence
  std::vector<std::unique_ptr<Sequence>> sequences;  // one per choice
  bool holds_queue_slot = true;                      // counts against limits.max_queued_requests
  bool was_scheduled = false;
  bool forked = false;  // the choices run on their own
  bool ended = false;
  // Numbers of the first and the last step, of those not completed, that carry page copies for it.
  std::uint64_t first_copy_step = 0;
  std::uint64_t last_copy_step = 0;
  std::uint32_t reserved_pages = 0;
  TenantRequests* of_tenant = nullptr;  // the scheduler's, while it has the request
  // In requests_waiting_tokens while it waits for its first step.
  std::uint32_t uncached_tokens = 0;
  std::int32_t cached_tokens = 0;
  // Prompt positions whose log-probability is out, or is not wanted; 0 has none.
  std::uint32_t prompt_logprob_tokens = 1;
  std::vector<float> pooled;  // of kEmbed: what the runner gave, once it has
  std::int32_t live_choices = 0;
  absl::Time full_since = absl::InfiniteFuture();  // the stream has been full from here on

  RequestProgress& progress() const { return accepted->progress; }
  bool is_prepared() const { return progress().is_prepared.load(std::memory_order_relaxed); }
  bool is_counted_running() const {
    return progress().is_counted_running.load(std::memory_order_relaxed);
  }
  Sequence& first() { return *sequences.front(); }
  std::uint32_t choices() const { return request.choices(); }
  // Most pages of all choices at a time.
  std::uint32_t worst_pages() const { return prompt.WorstPages(choices()); }
  bool uses_history() const { return request.sampling.uses_history(); }
};

}  // namespace quire::engine
