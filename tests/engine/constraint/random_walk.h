#pragma once

// Random walks: texts that a constraint allows, sampled at random.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/constraint/constraint.h"

namespace quire::engine {

// The tokens of a walk: their texts, the tokens that lead to the end of a text, and the end token.
struct WalkTokens {
  std::vector<std::string> texts;
  std::vector<bool> closes;
  std::int32_t end = 0;
};

// Takes random tokens that the masks allow, until the text ends. Where it may end, it does so one
// time in `ends_in`. Half of the steps prefer closing tokens, so that most walks end. Returns
// nullopt after `max_steps`.
inline std::optional<std::string> RandomWalk(const CompiledConstraint& constraint,
                                             const WalkTokens& tokens, int max_steps,
                                             unsigned ends_in, std::mt19937* random) {
  const auto matcher = constraint.NewMatcher({&tokens.end, 1});
  std::vector<std::uint32_t> words(constraint.mask_words());
  std::string text;
  for (int step = 0; step < max_steps; ++step) {
    const auto summary = matcher->FillMask(words);
    QUIRE_CHECK(summary.ok());
    QUIRE_CHECK(summary->may_end || summary->may_continue);
    if (summary->may_end && (!summary->may_continue || (*random)() % ends_in == 0)) {
      QUIRE_CHECK(matcher->Accept(tokens.end).ok());
      return text;
    }
    std::vector<std::size_t> allowed, closing;
    for (std::size_t token = 0; token < tokens.texts.size(); ++token) {
      const bool is_end = token == static_cast<std::size_t>(tokens.end);
      if (is_end || (words[token / 32] >> (token % 32) & 1) == 0) continue;
      allowed.push_back(token);
      if (tokens.closes[token]) closing.push_back(token);
    }
    const auto& from = !closing.empty() && (*random)() % 2 == 0 ? closing : allowed;
    const std::size_t next = from[(*random)() % from.size()];
    QUIRE_CHECK(matcher->Accept(static_cast<std::int32_t>(next)).ok());
    QUIRE_CHECK(matcher->CheckIntegrity().ok());
    text += tokens.texts[next];
  }
  return std::nullopt;
}

// Returns whether a text closes a JSON value.
inline bool ClosesJson(const std::string& text) {
  return text == "\"" || text == "}" || text == "]" || text == ",";
}

}  // namespace quire::engine
