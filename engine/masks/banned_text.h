#pragma once

// Determines which tokens would complete a banned string in an output. The comparison uses bytes,
// so the division of the string into tokens does not matter.
//
// Place:      a text worker creates it for a request, and mask threads use it.
// Invariants: a token is excluded if and only if a banned string ends inside or at the end of its
//             text, given the preceding text of the output.
// Threads:    immutable: any.
// Lifetime:   shared by the choices of a request.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/masks/token_texts.h"
#include "text/stop_matcher.h"

namespace quire::engine {

class BannedText {
 public:
  // The state before the first token of an output.
  static constexpr std::int32_t kStart = 0;

  // REQUIRES: `strings` is not empty, and no string is empty.
  BannedText(const std::vector<std::string>& strings, std::shared_ptr<const TokenTexts> tokens);

  // Returns the state after `token`.
  std::int32_t Next(std::int32_t state, std::int32_t token) const;
  // Clears the bits of tokens that must not follow. REQUIRES: words has MaskWords(tokens->size())
  // elements.
  void Exclude(std::int32_t state, std::span<std::uint32_t> words) const;
  std::uint32_t vocab_size() const { return tokens_->size(); }

 private:
  bool Completes(std::int32_t state, absl::string_view text) const;

  const text::StopAutomaton automaton_;
  const std::shared_ptr<const TokenTexts> tokens_;
  std::vector<std::uint32_t> excluded_at_start_;  // a set bit excludes the token
};

}  // namespace quire::engine
