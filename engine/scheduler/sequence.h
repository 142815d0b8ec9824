#pragma once

// The engine thread's state of one choice of a request.
//
//   0 ........ computed ........ launched() ........ tokens.size() ........ known()
//   K and V in pages    in a step in flight    known, not launched    sampled by a step in flight
//
// With nothing in flight, computed = launched() < tokens.size() = known(): the last token is not
// computed yet. An overlapped step computes a token that the host does not know yet.
//
// A sequence in kDecode has exactly one token to compute, and one in kPrefill has at least one.
// After a preemption, `computed` is 0 or the number of tokens that the cache still has. high_water
// keeps the earlier value, so that recomputed tokens are counted separately.
//
// Place:      part of its ScheduledRequest; written by the parts of Scheduler and of EngineCore.
// Invariants: computed <= high_water; computed < tokens.size(); row is set exactly in kPrefill,
//             kDecode and while the sequence waits for the first choice.
// Threads:    engine thread only.
// Lifetime:   as long as its request.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/strong_id.h"
#include "cache_manager/prefix/page_hash.h"
#include "engine/request/engine_options.h"
#include "engine/request/token_history.h"

namespace quire::engine {

struct ScheduledRequest;
class ChoiceMask;

enum class SequenceState : std::uint8_t {
  kWaiting,  // for its WaitCause
  kQueued,   // not admitted yet, or queued again because the first choice lost its pages
  kPrefill,
  kDecode,
  kPreempted,
  kFinished
};

// Event that a sequence in kWaiting waits for.
enum class WaitCause : std::uint8_t {
  kNone,        // the sequence is not in kWaiting
  kPrompt,      // a text worker prepares the prompt
  kFirstChoice  // the first choice computes the prompt; this choice has a row and no pages
};

struct SequenceTransition {
  SequenceState from;
  WaitCause from_cause;
  SequenceState to;
  WaitCause to_cause;
};

// All allowed transitions.
inline constexpr std::array<SequenceTransition, 16> kSequenceTransitions = {{
    // The prompt is prepared, or the request ends first.
    {SequenceState::kWaiting, WaitCause::kPrompt, SequenceState::kQueued, WaitCause::kNone},
    {SequenceState::kWaiting, WaitCause::kPrompt, SequenceState::kFinished, WaitCause::kNone},
    // The first choice is admitted, and the other choices of its request with it.
    {SequenceState::kQueued, WaitCause::kNone, SequenceState::kPrefill, WaitCause::kNone},
    {SequenceState::kQueued, WaitCause::kNone, SequenceState::kWaiting, WaitCause::kFirstChoice},
    {SequenceState::kQueued, WaitCause::kNone, SequenceState::kFinished, WaitCause::kNone},
    // The prompt is computed and the request forks. A choice without a page for its own tokens is
    // preempted.
    {SequenceState::kWaiting, WaitCause::kFirstChoice, SequenceState::kDecode, WaitCause::kNone},
    {SequenceState::kWaiting, WaitCause::kFirstChoice, SequenceState::kPreempted, WaitCause::kNone},
    // The first choice has lost its pages.
    {SequenceState::kWaiting, WaitCause::kFirstChoice, SequenceState::kQueued, WaitCause::kNone},
    {SequenceState::kWaiting, WaitCause::kFirstChoice, SequenceState::kFinished, WaitCause::kNone},
    {SequenceState::kPrefill, WaitCause::kNone, SequenceState::kDecode, WaitCause::kNone},
    {SequenceState::kPrefill, WaitCause::kNone, SequenceState::kPreempted, WaitCause::kNone},
    {SequenceState::kPrefill, WaitCause::kNone, SequenceState::kFinished, WaitCause::kNone},
    {SequenceState::kDecode, WaitCause::kNone, SequenceState::kPreempted, WaitCause::kNone},
    {SequenceState::kDecode, WaitCause::kNone, SequenceState::kFinished, WaitCause::kNone},
    {SequenceState::kPreempted, WaitCause::kNone, SequenceState::kPrefill, WaitCause::kNone},
    {SequenceState::kPreempted, WaitCause::kNone, SequenceState::kFinished, WaitCause::kNone},
}};

// Returns the index of a transition in the table, or nothing if it is not allowed.
std::optional<std::size_t> FindTransition(SequenceState from, WaitCause from_cause,
                                          SequenceState to, WaitCause to_cause);

struct Sequence {
  ScheduledRequest* request = nullptr;
  std::int32_t choice = 0;
  std::optional<BatchRow> row;
  std::vector<std::int32_t> tokens;  // prompt and output
  std::vector<cache::PageKey> keys;  // keys of the full pages, as far as known
  std::uint32_t prompt_tokens = 0;
  std::uint32_t computed = 0;
  std::uint32_t in_flight = 0;          // tokens that steps in flight compute, from `computed` on
  std::uint32_t samples_in_flight = 0;  // tokens that steps in flight sample
  std::uint32_t sample_index = 0;       // index of the last sampled token in its step's samples
  // CacheManager::proven_tokens of its row when the row was released.
  std::uint32_t proven_tokens = 0;
  std::uint32_t high_water = 0;        // greatest value of `computed` so far; forks inherit it
  std::uint32_t num_pages = 0;         // CacheManager::num_pages of its row
  std::uint64_t admission_number = 0;  // number of its first admission; a smaller one is older
  // Index among the prompts of its tenant, in the step that is planned.
  std::uint32_t tenant_prompt_index = 0;
  std::int32_t preemptions = 0;
  std::int32_t recomputed_tokens = 0;
  // True if the output of the sequence is stalled or its mask is late. The sequence is then left
  // out of steps and keeps its pages.
  bool is_stalled = false;
  // True if the sequence was not sampled in its last step because its mask was late. When the mask
  // is ready, the last token is computed again. Recurrent models cannot recompute a token, so their
  // rows run no step until the mask is ready.
  bool awaits_mask = false;
  // True if the model has recurrent states and the mask of the next token is not ready. A chunk may
  // then compute all tokens except the last one.
  bool holds_last_token = false;
  bool completed = false;    // kFinished because it ended normally
  bool invalidated = false;  // kFinished because its logits were not finite

  // The tokens that the cache gets if EngineOptions::share_generated_pages is false, and empty
  // otherwise. They are `tokens`, but generated tokens have the bit kGeneratedTag. Page keys,
  // comparisons of tokens and partial matches then distinguish generated tokens from prompt tokens,
  // although the cache does not interpret the bit.
  std::vector<std::int32_t> tagged_tokens;

  std::shared_ptr<ChoiceMask> mask;  // null unless its request has MaskRules and has started

  TokenHistory history;  // counts of `tokens` if a penalty needs them; else empty

  const std::vector<std::int32_t>& cache_tokens() const {
    return tagged_tokens.empty() ? tokens : tagged_tokens;
  }
  void Append(std::int32_t token) {
    tokens.push_back(token);
    if (!tagged_tokens.empty()) tagged_tokens.push_back(token | kGeneratedTag);
  }
  std::uint32_t total() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t launched() const { return computed + in_flight; }
  // End of the tokens that the next chunk may compute.
  std::uint32_t chunk_end() const { return total() - (holds_last_token ? 1 : 0); }
  std::uint32_t known() const { return total() + samples_in_flight; }
  std::int32_t output_tokens() const {
    return static_cast<std::int32_t>(tokens.size()) - static_cast<std::int32_t>(prompt_tokens);
  }
  SequenceState state() const { return state_; }
  WaitCause wait_cause() const { return wait_cause_; }
  bool waits_for(WaitCause cause) const { return wait_cause_ == cause; }
  bool active() const {
    return state_ == SequenceState::kPrefill || state_ == SequenceState::kDecode;
  }
  bool finished() const { return state_ == SequenceState::kFinished; }
  // Changes the state. Returns the index of the transition in kSequenceTransitions. REQUIRES: the
  // table has it.
  std::size_t Enter(SequenceState to, WaitCause cause = WaitCause::kNone);

 private:
  SequenceState state_ = SequenceState::kWaiting;
  WaitCause wait_cause_ = WaitCause::kPrompt;
};

}  // namespace quire::engine
