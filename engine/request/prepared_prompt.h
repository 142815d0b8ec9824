#pragma once

// What a text worker makes of a request's prompt: token ids, page keys, and what follows from their
// number.
//
// Place:      made by PrepareRequest, moved to the engine thread with the signal kPrepared.
// Threads:    one at a time: a text worker's until it is moved, then the engine thread's.
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
  std::vector<cache::PageKey> keys;  // as the tokens
  TokenHistory history;              // where a penalty asks for it; moved likewise
  Hash128 root;
  std::string echo_text;               // for echo_prompt with text
  std::vector<std::int32_t> echo_ids;  // for echo_prompt with token ids
  std::int32_t queued_tokens = 0;      // counted in the queue's token limit
  std::int32_t max_tokens = 0;         // after clipping to the context; 0: it does not generate
  std::uint32_t score_from = 1;        // of a ScorePrompt: where its continuation begins
  bool clipped_by_context = false;
  bool opens_reasoning = false;         // the answer begins inside a section of reasoning
  bool is_after_reasoning = false;      // and has none, by the end of the prompt
  text::DetokenizerState answer_start;  // where the text of each choice begins
  std::uint32_t limit_tokens = 0;       // K and V that one choice may ever write
  std::uint32_t worst_pages_first = 0;  // most pages of one choice alone at a time
  std::uint32_t shared_pages = 0;       // of those, full prompt pages that other choices share
  std::vector<std::int32_t> end_ids;    // that end a choice: end-of-sequence and stop ids, distinct
  std::vector<kernels::LogitBias> bias;
  MaskRules mask_rules;

  // Most pages of `choices` choices at a time.
  std::uint32_t WorstPages(std::uint32_t choices) const {
    return shared_pages + choices * (worst_pages_first - shared_pages);
  }
};

}  // namespace quire::engine
