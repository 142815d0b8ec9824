#pragma once

// Which tokens would put a banned string into an answer, decided on bytes: whatever tokens spell
// the string, and wherever it begins and ends in them.
//
// Place:      made for a request by a text worker; asked by mask threads.
// Invariants: a token is excluded exactly when a banned string ends inside or at the end of its
//             text, behind the text of the answer before it.
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
  // The state before the first token of an answer.
  static constexpr std::int32_t kStart = 0;

  // REQUIRES: there are strings, and none is empty.
  BannedText(const std::vector<std::string>& strings, std::shared_ptr<const TokenTexts> tokens);

  // The state behind `token`.
  std::int32_t Next(std::int32_t state, std::int32_t token) const;
  // Takes the bits of tokens that must not follow. REQUIRES: words has MaskWords(tokens->size()).
  void Exclude(std::int32_t state, std::span<std::uint32_t> words) const;
  std::uint32_t vocab_size() const { return tokens_->size(); }

 private:
  bool Completes(std::int32_t state, absl::string_view text) const;

  const text::StopAutomaton automaton_;
  const std::shared_ptr<const TokenTexts> tokens_;
  std::vector<std::uint32_t> excluded_at_start_;  // bit 1: excluded
};

}  // namespace quire::engine
