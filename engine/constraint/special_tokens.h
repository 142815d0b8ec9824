#pragma once

// The special tokens that a constraint may contain, identified by their texts.
//
// Place:      below the writers of grammars. If a marker, such as <tool_call>, is a special token,
//             the grammar contains that token. A literal with the marker's text would not match the
//             token, because the grammar library knows no bytes of special tokens.
// Invariants: texts are not empty. If two of them match at the same position, the longer one is
//             used.
// Threads:    immutable.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

class SpecialTokens {
 public:
  SpecialTokens() = default;  // no tokens
  // `tokens` has texts and ids. If a text occurs twice, the first id is used.
  explicit SpecialTokens(const std::vector<std::pair<std::string, std::int32_t>>& tokens);

  // Returns the size in bytes and the id of the special token with which `text` begins.
  std::optional<std::pair<std::size_t, std::int32_t>> FindAtStart(absl::string_view text) const;

  // Writes the text with its special tokens as tokens. REQUIRES: the text is UTF-8.
  GrammarText::Expression Write(absl::string_view text) const;

 private:
  absl::flat_hash_map<std::string, std::int32_t> ids_;
  std::size_t max_text_bytes_ = 0;
};

}  // namespace quire::engine
