#pragma once

// DRY: a penalty for tokens that would continue a repetition. A match of length n is an earlier
// occurrence of the last n tokens. For a candidate token, n is the length of the longest match that
// this token has followed. If n is at least allowed_length, the logit of the token is reduced by
// multiplier * base^(n - allowed_length). A match contains no token that breaks matches, and lies
// in the last window_tokens tokens of prompt and output. A token breaks matches, and is not
// penalized, if a breaker ends in it or if it has no text. The breaker may begin in an earlier
// token.
//
// Place:      a text worker creates it from a prompt. The mask thread that fills the first mask of
//             a choice copies it.
// Invariants: the penalties depend only on the tokens, never on timing. Append takes one step for
//             each earlier position of the token in the window.
// Threads:    one thread at a time.
// Lifetime:   a value.
// Source:     P. E. Weidmann, oobabooga/text-generation-webui, pull request 5677; llama.cpp's
//             variant of it, with a window and matches of any length.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/constraint/dry_params.h"
#include "engine/masks/token_texts.h"
#include "kernels/sampling/sampling.h"
#include "text/stop_matcher.h"

namespace quire::engine {

class RepeatPenalty {
 public:
  // The largest penalty, which leaves every logit finite.
  static constexpr float kMaxPenalty = 1e30f;

  // REQUIRES: params.is_on(), and all params are in their ranges.
  RepeatPenalty(const DryParams& params, std::shared_ptr<const TokenTexts> texts,
                std::span<const std::int32_t> prompt);

  // Appends `token` to the output.
  void Append(std::int32_t token);
  // Returns the penalties of the next token as negative biases, ordered by id and with unique ids.
  // At most kMaxDryTokens ids are penalized.
  std::span<const kernels::LogitBias> Penalties();

  // Checks that Append produced the same state as the constructor does for the same tokens.
  // O(tokens).
  absl::Status CheckIntegrity() const;

 private:
  // The constant data that all choices share.
  struct Rules {
    DryParams params;
    text::StopAutomaton breakers;
    std::shared_ptr<const TokenTexts> texts;
  };
  static constexpr std::uint32_t kNone = ~0u;

  RepeatPenalty(std::shared_ptr<const Rules> rules, std::span<const std::int32_t> prompt);

  // Returns whether `token` breaks matches after the text so far, and advances `node` by it.
  bool Breaks(std::int32_t token, std::int32_t* node) const;
  // Returns the first position in the window if there are `size` tokens.
  std::size_t WindowBegin(std::size_t size) const;
  void Link(std::int32_t token);
  void MatchPrompt();

  std::shared_ptr<const Rules> rules_;
  std::int32_t node_ = 0;         // state of the breakers after the last token
  std::size_t num_unbroken_ = 0;  // number of tokens since the last one that breaks matches
  std::vector<std::int32_t> tokens_;
  // For each position, the previous position of the same token; kNone if there is none.
  std::vector<std::uint32_t> previous_position_;
  absl::flat_hash_map<std::int32_t, std::uint32_t> latest_position_;  // last position of each token
  // For each position in the window whose token equals the last token: the length, at most
  // num_unbroken_, of the match that ends there. Undefined for other positions.
  std::vector<std::uint32_t> match_lengths_;
  absl::flat_hash_map<std::int32_t, std::uint32_t> longest_match_;  // scratch of Penalties
  std::vector<std::pair<std::uint32_t, std::int32_t>>
      candidates_;  // scratch of Penalties: length, token
  std::vector<kernels::LogitBias> penalties_;
};

}  // namespace quire::engine
