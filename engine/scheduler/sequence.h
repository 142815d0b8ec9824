#pragma once

// The engine thread's state of one choice of a request.
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
// Place:      part of its ScheduledRequest; written by Scheduler, EngineCore and BatchBuilder.
// Invariants: computed <= high_water or computed > every earlier value; computed < tokens.size();
//             row is set exactly in kPrefill, kDecode and, for choices that wait for the first one,
//             kForkWait.
// Threads:    engine thread only.
// Lifetime:   that of its request.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/strong_id.h"
#include "cache_manager/prefix/page_hash.h"
#include "engine/request/engine_options.h"
#include "kernels/sampling/sampling.h"

namespace quire::engine {

struct ScheduledRequest;

enum class SequenceState : std::uint8_t {
  kQueued,    // never admitted, or not forked yet and without a row
  kForkWait,  // choices 1.. of a request in prefill: a row, no pages
  kPrefill,
  kDecode,
  kPreempted,
  kFinished
};

struct Sequence {
  ScheduledRequest* request = nullptr;
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

}  // namespace quire::engine
