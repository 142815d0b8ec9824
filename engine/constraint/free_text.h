#pragma once

// Writes the grammar of free text that ends at the first occurrence of one of several strings.
// Each string has an expression, its continuation, that must follow it. The rules of the grammar
// are the states of an Aho-Corasick automaton.
//
// Place:      above grammar_text.
// Invariants: none of the strings, which may overlap, occurs in the free text before its end. The
//             free text contains no special token, except one that ends it.
// Threads:    one thread at a time.

#include <optional>
#include <string>
#include <vector>

#include "engine/constraint/grammar_text.h"

namespace quire::engine {

struct FreeTextEnd {
  std::string text;  // UTF-8, not empty
  // The continuation. If it is nullopt, the text must not contain the string at all.
  std::optional<GrammarText::Expression> next;
};

// Defines the rule `start`, to which the continuations may refer, and returns a reference to it.
// Each of `token_ends` is an expression that begins with a special token and may also end the text.
// With `may_end`, the text may also end anywhere. REQUIRES: `ends` is not empty, and at least one
// end is possible.
GrammarText::Expression WriteFreeText(const std::vector<FreeTextEnd>& ends,
                                      const std::vector<GrammarText::Expression>& token_ends,
                                      bool may_end, GrammarText::Rule start, GrammarText* grammar);

}  // namespace quire::engine
