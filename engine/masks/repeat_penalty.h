#pragma once

// DRY: a penalty for tokens that would continue a repetition. If the last n tokens also occur
// earlier, the token that followed them there is penalised. With the largest such n, and if n is at
// least allowed_length, its logit is reduced by multiplier * base^(n - allowed_length). If it
// followed several matches, the longest one counts. A match contains no token that breaks matches,
// and it lies in the last window_tokens tokens of prompt and output. A token in which a breaker
// ends, wherever the breaker begins, breaks matches and is not penalised. The same applies to a
// token without text.
//
// Place:      a text worker creates it from a prompt. The mask thread that fills the first mask of
//             a choice copies it.
// Invariants: the penalties depend only on the tokens, never on timing. A token costs one step for
//             each of its earlier positions in the window.
// Threads:    one at a time.
// Lifetime:   a value.
// Source:     P. E. Weidmann, oobabooga/text-generation-webui, pull request 5677; llama.cpp's
//             variant of it, with a window and matches of any length.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
  // At most kMaxDryTokens ids are penalised.
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
  std::int32_t node_ = 0;     // state of the breakers after the last token
  std::size_t unbroken_ = 0;  // number of tokens since the last one that breaks matches
  std::vector<std::int32_t> tokens_;
  // Position of the same token before; kNone if there is none.
  std::vector<std::uint32_t> previous_;
  absl::flat_hash_map<std::int32_t, std::uint32_t> latest_;  // last position of each token
  // For a position in the window that has the last token: the number of tokens, at most unbroken_,
  // that end there and equal the last tokens. Undefined for other positions.
  std::vector<std::uint32_t> matches_;
  absl::flat_hash_map<std::int32_t, std::uint32_t> longest_;  // scratch of Penalties
  std::vector<kernels::LogitBias> penalties_;
};

}  // namespace quire::engine
