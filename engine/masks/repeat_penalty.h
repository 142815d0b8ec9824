#pragma once

// DRY: the penalty for tokens that would go on with a repetition. Where the text so far ends with n
// tokens that stand earlier in it, n being as large as it can be, the token that followed them
// there loses multiplier * base^(n - allowed_length), if n is allowed_length at least; of several
// places the longest match counts. A match begins behind the last token that breaks it, and lies in
// the last window_tokens tokens of prompt and output. A token in which one of the breakers ends,
// wherever it begins, breaks matches and has no penalty; so does one without text.
//
// Place:      made of a prompt by a text worker; copied for each choice by the mask thread that
//             makes its first mask.
// Invariants: the penalties are a function of the tokens, never of when they came. A token costs
//             one step for each earlier place of it in the window.
// Threads:    one at a time.
// Lifetime:   a value.
// Source:     P. E. Weidmann, oobabooga/text-generation-webui, pull request 5677; llama.cpp's form
//             of it (the window; a match may be of any length).

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
  // No penalty is larger: it leaves a logit finite.
  static constexpr float kMaxPenalty = 1e30f;

  // REQUIRES: params.is_on(), and params are in their ranges.
  RepeatPenalty(const DryParams& params, std::shared_ptr<const TokenTexts> texts,
                std::span<const std::int32_t> prompt);

  // The output goes on by `token`.
  void Append(std::int32_t token);
  // What the logits of the next token lose, as biases in order of ids, each id once: of at most
  // kMaxDryTokens ids.
  std::span<const kernels::LogitBias> Penalties();

  // Proves that what Append has made is what the constructor makes of the same tokens. O(tokens).
  absl::Status CheckIntegrity() const;

 private:
  // What all choices share.
  struct Rules {
    DryParams params;
    text::StopAutomaton breakers;
    std::shared_ptr<const TokenTexts> texts;
  };
  static constexpr std::uint32_t kNone = ~0u;

  RepeatPenalty(std::shared_ptr<const Rules> rules, std::span<const std::int32_t> prompt);

  // Whether `token` breaks matches behind the text so far; moves `node` behind it.
  bool Breaks(std::int32_t token, std::int32_t* node) const;
  // The first place that the window of `size` tokens holds.
  std::size_t WindowBegin(std::size_t size) const;
  void Link(std::int32_t token);
  void MatchPrompt();

  std::shared_ptr<const Rules> rules_;
  std::int32_t node_ = 0;     // of the breakers, behind the last token
  std::size_t unbroken_ = 0;  // tokens behind the last one that breaks
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> previous_;  // place of the same token before; kNone
  absl::flat_hash_map<std::int32_t, std::uint32_t> latest_;  // of each token
  // Of a place in the window that has the last token: of how many tokens up to there, at most
  // unbroken_, the last tokens are a repetition. Of others nothing.
  std::vector<std::uint32_t> matches_;
  absl::flat_hash_map<std::int32_t, std::uint32_t> longest_;  // scratch of Penalties
  std::vector<kernels::LogitBias> penalties_;
};

}  // namespace quire::engine
