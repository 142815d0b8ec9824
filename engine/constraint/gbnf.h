#pragma once

// Reads a grammar in the EBNF of llama.cpp (GBNF) and writes it anew, so that the library meets no
// name, escape or count that was not checked.
//
// Place:      above grammar_text.
// Invariants: rules `name ::= ...`, literals, classes, `.`, groups, `|`, `* + ?`, {m}, {m,}, {m,n},
//             comments; the start is `root`. Errors name line and column. Host recursion is bounded
//             by kMaxGbnfDepth.
// Threads:    pure.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

inline constexpr int kMaxGbnfDepth = 100;  // of groups
inline constexpr int kMaxGbnfRules = 1024;
inline constexpr int kMaxGbnfRepeats = 1024;
inline constexpr std::size_t kMaxGbnfElements = 4096;  // of one alternative
inline constexpr std::int64_t kMaxGbnfCount = 4096;    // of {m,n}

// An expression of `grammar`. INVALID_ARGUMENT with the place, also for rules that are not defined,
// and for those that no text meets.
absl::StatusOr<GrammarText::Expression> WriteGbnf(absl::string_view text, GrammarText* grammar);

}  // namespace quire::engine
