#pragma once

// The engine thread's state of a request: its prompt, its choices, and its share of the queue and
// of the pages.
//
// Place:      between RequestLifecycle, Scheduler and StepPipeline.
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

// The reason why the output of a request accepts no further tokens.
enum class OutputStall : std::uint8_t {
  kNone,
  kWorker,  // too many of its tokens are queued for the output worker
  kClient   // its stream is full of tokens that the client has not read
};

// Numbers of the first and the last uncompleted step that carry page copies for a request.
struct CopySteps {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

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
  const Request& request;       // accepted->request
  const std::uint64_t arrival;  // accepted->arrival

  PreparedPrompt prompt;  // set by kPrepared; its tokens and keys move to the first sequence
  std::vector<std::unique_ptr<Sequence>> sequences;  // one per choice
  bool holds_queue_slot = true;                      // counts against limits.max_queued_requests
  bool was_scheduled = false;
  bool forked = false;  // the prompt is computed, and the choices run separately
  bool ended = false;
  CopySteps copy_steps;
  std::uint32_t reserved_pages = 0;
  TenantRequests* tenant_requests = nullptr;  // owned by TenantTurns; null outside the scheduler
  // Number of prompt tokens that are not in the prefix cache, while the request waits for its first
  // step.
  std::uint32_t uncached_tokens = 0;
  std::int32_t cached_tokens = 0;
  // Number of leading prompt positions whose log-probability was emitted or not requested. Position
  // 0 has no log-probability.
  std::uint32_t prompt_logprob_tokens = 1;
  std::vector<float> pooled;  // Task::kEmbed: the result of the runner
  std::int32_t live_choices = 0;
  OutputStall output_stall = OutputStall::kNone;
  absl::Time client_stalled_since = absl::InfiniteFuture();  // start of the present kClient stall

  RequestProgress& progress() const { return accepted->progress; }
  bool is_prepared() const { return progress().is_prepared.load(std::memory_order_relaxed); }
  bool is_counted_running() const {
    return progress().is_counted_running.load(std::memory_order_relaxed);
  }
  Sequence& first() { return *sequences.front(); }
  std::uint32_t choices() const { return request.choices(); }
  // Maximum number of pages that all choices hold together at any moment.
  std::uint32_t worst_pages() const { return prompt.WorstPages(choices()); }
  bool uses_history() const { return request.sampling.uses_history(); }
};

}  // namespace quire::engine
