#pragma once

// The special tokens of a vocabulary that a constraint may place: by their texts, as a tokenizer
// splits text at them.
//
// Place:      below the writers of grammars, which have a marker that is a special token written as
//             that token: its bytes are in no other one.
// Invariants: texts are not empty. Where two begin at the same place, the longer one counts.
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
  SpecialTokens() = default;  // none
  // Texts and ids. Of a text that is there twice the first id counts.
  explicit SpecialTokens(const std::vector<std::pair<std::string, std::int32_t>>& tokens);

  // With which `text` begins: its length in bytes and its id.
  std::optional<std::pair<std::size_t, std::int32_t>> AtBeginningOf(absl::string_view text) const;

  // The text with its special tokens as tokens. REQUIRES: it is UTF-8.
  GrammarText::Expression Write(absl::string_view text) const;

 private:
  absl::flat_hash_map<std::string, std::int32_t> ids_;
  std::size_t longest_ = 0;
};

}  // namespace quire::engine
