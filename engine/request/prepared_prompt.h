#pragma once

// The result of a text worker for a request's prompt: token ids, page keys, and values that depend
// on the number of tokens.
//
// Place:      created by PrepareRequest and moved to the engine thread with the signal kPrepared.
// Threads:    one thread at a time: first the text worker, after the move the engine thread.
// Lifetime:   part of its ScheduledRequest.

#include <cstdint>
#include <string>
#include <vector>

#include "cache_manager/prefix/page_hash.h"
#include "engine/masks/mask_rules.h"
#include "engine/request/token_history.h"
#include "kernels/sampling/sampling.h"
#include "text/tokenizer/decoder_state.h"

namespace quire::engine {

struct PreparedPrompt {
  std::vector<std::int32_t> tokens;  // the engine thread moves them into the first sequence
  std::vector<cache::PageKey> keys;  // moved in the same way
  TokenHistory history;              // set only if a penalty needs it; moved in the same way
  Hash128 root;
  std::string echo_text;               // set if the request echoes the prompt's text
  std::vector<std::int32_t> echo_ids;  // set if the request echoes the prompt's token ids
  std::int32_t queued_tokens = 0;      // tokens counted against max_queued_tokens
  // StoppingParams::max_tokens, clipped to the context; 0: nothing is generated.
  std::int32_t max_tokens = 0;
  std::uint32_t score_from = 1;     // position of the first continuation token of a ScorePrompt
  bool clipped_by_context = false;  // max_tokens is less than requested
  bool is_truncated = false;        // the prompt lost its first tokens
  bool opens_reasoning = false;     // the answer begins inside a reasoning section
  // True if the answer cannot contain reasoning, because the prompt ends after a reasoning section,
  // or inside a continued message but outside its reasoning.
  bool is_after_reasoning = false;
  text::DetokenizerState answer_start;  // detokenizer state at the start of each choice
  // Maximum number of cached tokens of one choice: its prompt and its answer without the last
  // token.
  std::uint32_t max_cached_tokens = 0;
  // Maximum number of pages that one choice holds at any moment.
  std::uint32_t max_pages_of_one_choice = 0;
  std::uint32_t shared_pages = 0;  // number of pages that all choices share (full prompt pages)
  // Token ids that end a choice: end-of-sequence and stop ids, distinct.
  std::vector<std::int32_t> end_ids;
  std::vector<kernels::LogitBias> bias;
  MaskRules mask_rules;

  // Returns the maximum number of pages that `choices` choices hold together at any moment.
  std::uint32_t WorstPages(std::uint32_t choices) const {
    return shared_pages + choices * (max_pages_of_one_choice - shared_pages);
  }
};

}  // namespace quire::engine
