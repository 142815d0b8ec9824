#pragma once

// Free text up to the first of some strings, and what follows each: an automaton over the strings
// (Aho-Corasick), whose states are rules.
//
// Place:      above grammar_text.
// Invariants: the text has none of the strings in it but at its end, whichever way they overlap,
//             and no special token but those that end it.
// Threads:    one at a time.

#include <optional>
#include <string>
#include <vector>

#include "engine/constraint/grammar_text.h"

namespace quire::engine {

struct FreeTextEnd {
  std::string text;  // UTF-8, not empty
  // What comes behind it. Absent: the text may not have it at all.
  std::optional<GrammarText::Expression> next;
};

// `token_ends`: expressions that begin with a special token, each of which may end the text too.
// `may_end`: the free text may also be all there is. Defines `start`, so that what comes behind an
// end can lead back to it. REQUIRES: `ends` is not empty; there is a way to end.
void WriteFreeText(const std::vector<FreeTextEnd>& ends,
                   const std::vector<GrammarText::Expression>& token_ends, bool may_end,
                   GrammarText::Rule start, GrammarText* grammar);

}  // namespace quire::engine
