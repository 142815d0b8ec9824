#pragma once

// Parses a grammar in the EBNF of llama.cpp (GBNF) and translates it to a GrammarText, so that the
// grammar library only gets validated names, escapes and counts.
//
// Place:      above grammar_text.
// Invariants: supports rules `name ::= ...`, literals, classes, `.`, groups, `|`, `* + ?`, {m},
//             {m,}, {m,n} and comments; the start rule is `root`. Errors name line and column.
//             kMaxGbnfDepth bounds the recursion.
// Threads:    pure functions.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

inline constexpr int kMaxGbnfDepth = 100;  // nesting of groups
inline constexpr int kMaxGbnfRules = 1024;
inline constexpr int kMaxGbnfRepeats = 1024;
inline constexpr std::size_t kMaxGbnfElements = 4096;  // per alternative
inline constexpr std::int64_t kMaxGbnfCount = 4096;    // maximum m and n of {m,n}

// Returns an expression of `grammar`. Returns INVALID_ARGUMENT with the position for syntax errors,
// undefined rules, and rules that match no text.
absl::StatusOr<GrammarText::Expression> WriteGbnf(absl::string_view text, GrammarText* grammar);

}  // namespace quire::engine
