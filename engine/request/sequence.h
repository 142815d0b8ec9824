#pragma once

// The engine's own state of a request and of each of its choices.
//
//   0 ........ computed ........ launched() ........ tokens.size() ........ known()
//   K and V in pages    in a step in flight    known, not launched    drawn by a step in flight
//
// With nothing in flight computed = launched() < tokens.size() = known(): the last token is always
// still to be computed. A step that is launched ahead computes a token that it does not know yet.
//
// A sequence in kDecode has exactly one token to compute; one in kPrefill has more, or has just
// been admitted. After a preemption computed is 0 (or what the cache still holds) and high_water
// remembers how far it had come, so that work done twice is counted apart.
//
// Place:      between Scheduler, EngineCore and OutputStage.
// Invariants: computed <= high_water or computed > every earlier value; computed < tokens.size();
//             row is set exactly in kPrefill, kDecode and, for choices that wait for the first one,
//             kForkWait.
// Threads:    see the three parts of LiveRequest.
// Lifetime:   shared by table, engine and output worker; the last one frees it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/strong_id.h"
#include "cache_manager/prefix/page_hash.h"
#include "engine/request/request.h"
#include "engine/request/tenant_limits.h"
#include "kernels/sampling/sampling.h"

namespace quire::engine {

struct LiveRequest;
class RequestOutput;
class TokenStream;

enum class SequenceState : std::uint8_t {
  kQueued,    // never admitted, or not forked yet and without a row
  kForkWait,  // choices 1.. of a request in prefill: a row, no pages
  kPrefill,
  kDecode,
  kPreempted,
  kFinished
};

// Above every vocabulary.
inline constexpr std::int32_t kGeneratedMark = 1 << 30;

struct Sequence {
  LiveRequest* request = nullptr;
  std::int32_t choice = 0;
  SequenceState state = SequenceState::kQueued;
  std::optional<BatchRow> row;
  std::vector<std::int32_t> tokens;  // prompt and output
  std::vector<cache::PageKey> keys;  // of full pages, as far as known
  std::uint32_t prompt_tokens = 0;
  std::uint32_t computed = 0;
  std::uint32_t in_flight = 0;      // tokens that steps in flight compute, from `computed` on
  std::uint32_t pending_draws = 0;  // tokens that they draw
  std::uint32_t draw_index = 0;     // of the last one, in its step
  std::uint32_t high_water = 0;     // greatest computed so far; the parent's for a fork
  std::uint32_t pages = 0;          // as the cache manager says
  std::uint64_t admission = 0;      // number of the first admission; smaller is older
  std::int32_t preemptions = 0;
  std::int32_t recomputed_tokens = 0;
  bool skips = false;      // its stream or output ring is full: not scheduled, pages kept
  bool completed = false;  // kFinished because it came to its own end
  bool scrubbed = false;   // kFinished because of its logits

  // Without EngineOptions::share_generated_pages, what the cache is told instead of `tokens`:
  // generated tokens carry kGeneratedMark. So page keys, comparisons of tokens and partial matches
  // tell the classes apart, and the cache needs to know nothing of them. Empty otherwise.
  std::vector<std::int32_t> marked_tokens;

  // Kept only when a penalty asks for it; `history_index` finds the entry of a token.
  std::vector<kernels::TokenCount> history;
  absl::flat_hash_map<std::int32_t, std::uint32_t> history_index;

  const std::vector<std::int32_t>& cache_tokens() const {
    return marked_tokens.empty() ? tokens : marked_tokens;
  }
  void Append(std::int32_t token) {
    tokens.push_back(token);
    if (!marked_tokens.empty()) marked_tokens.push_back(token | kGeneratedMark);
  }
  std::uint32_t total() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t launched() const { return computed + in_flight; }
  std::uint32_t known() const { return total() + pending_draws; }
  std::int32_t output_tokens() const {
    return static_cast<std::int32_t>(tokens.size()) - static_cast<std::int32_t>(prompt_tokens);
  }
  bool active() const {
    return state == SequenceState::kPrefill || state == SequenceState::kDecode;
  }
};

// Counts `token` in the history; `in_output` is false for prompt tokens.
void AddToHistory(Sequence& sequence, std::int32_t token, bool in_output);

struct LiveRequest {
  LiveRequest();
  ~LiveRequest();
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  // Part 1: constant after Accept.
  Request request;
  std::uint64_t arrival = 0;  // number, in the order of Accept
  std::shared_ptr<TokenStream> stream;
  std::size_t output_worker = 0;

  // Part 2: written by the text worker, constant once it has posted kPrepared.
  absl::Status prepare_status;
  std::vector<std::int32_t> prompt;  // moved into the first sequence by the engine
  std::vector<cache::PageKey> keys;
  Hash128 root;
  std::string prompt_text;             // for echo_prompt with text
  std::vector<std::int32_t> echo_ids;  // for echo_prompt with token ids
  std::int32_t queued_tokens = 0;      // counted in the queue's token limit
  std::int32_t max_tokens = 0;         // after clipping to the context
  bool clipped_by_context = false;
  std::uint32_t limit_tokens = 0;       // K and V that one choice may ever write
  std::uint32_t worst_pages_first = 0;  // most pages of one choice alone at a time
  std::uint32_t shared_pages = 0;       // of those, full prompt pages that other choices share
  std::vector<std::int32_t> end_ids;    // that end a choice: end-of-sequence and stop ids, distinct
  std::vector<kernels::LogitBias> bias;

  // Shared: read by ListRequests from any thread.
  std::atomic<RequestState> state{RequestState::kPreparing};
  std::atomic<std::int32_t> shown_prompt_tokens{0};
  std::atomic<std::int32_t> shown_output_tokens{0};
  std::atomic<std::int32_t> shown_pages{0};
  std::atomic<bool> cancel_requested{false};
  std::atomic<std::int32_t> in_ring_tokens{0};  // on their way to the output worker

  // Part 3: engine thread only.
  std::vector<std::unique_ptr<Sequence>> sequences;  // one per choice, after kPrepared
  bool prepared = false;
  bool counted_running = false;  // in requests_running, else in requests_waiting
  bool holds_queue_slot = true;  // counts against limits.max_queued_requests
  bool was_scheduled = false;
  bool forked = false;  // the choices run on their own
  bool ended = false;
  // Numbers of the first and the last step, of those not completed, that carry page copies for it.
  std::uint64_t first_copy_step = 0;
  std::uint64_t last_copy_step = 0;
  std::uint32_t reserved_pages = 0;
  TenantRequests* of_tenant = nullptr;  // the scheduler's, while it has the request
  std::uint32_t uncached_tokens =
      0;  // in requests_waiting_tokens while it waits for its first step
  std::int32_t cached_tokens = 0;
  std::uint32_t scored_tokens = 1;  // prompt positions whose log-probability is out; 0 has none
  std::int32_t live_choices = 0;
  absl::Time queue_deadline = absl::InfiniteFuture();
  absl::Time schedule_time;
  absl::Time full_since = absl::InfiniteFuture();  // the stream has been full from here on

  // Part 4: its output worker only.
  std::shared_ptr<RequestOutput> output;

  Sequence& first() { return *sequences.front(); }
  std::uint32_t choices() const {
    return static_cast<std::uint32_t>(request.sampling.choice_count);
  }
  // Most pages of all choices at a time.
  std::uint32_t worst_pages() const {
    return shared_pages + choices() * (worst_pages_first - shared_pages);
  }
  bool uses_history() const;
};

}  // namespace quire::engine
