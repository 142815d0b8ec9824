#pragma once

// Writes the grammars of specs with tags: free text with constrained sections, and tool calls that
// are forced or occur in free text.
//
// Place:      above free_text and special_tokens; the caller's function writes the content of a
//             tag.
// Invariants: markers that are special tokens of the vocabulary become those tokens; no other
//             special token is allowed.
// Threads:    one thread at a time.

#include <functional>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/special_tokens.h"

namespace quire::engine {

inline constexpr std::size_t kMaxTags = 256;
inline constexpr std::size_t kMaxMarkerBytes = 1024;  // of a tag's begin or end
// Maximum total size of the triggers of a spec. Each character becomes at most one state of the
// automaton (free_text.h).
inline constexpr std::size_t kMaxTriggerBytes = 256;

// Writes the content of tag `index`.
using WriteContent = std::function<absl::StatusOr<GrammarText::Expression>(std::size_t index)>;

// Writes kStructuralTags. Returns an error if triggers or tags are invalid, or if `content` fails.
absl::StatusOr<GrammarText::Expression> WriteStructuralTags(const ConstraintSpec& spec,
                                                            const SpecialTokens& special,
                                                            const WriteContent& content,
                                                            GrammarText* grammar);

// Writes kToolCalls. REQUIRES: spec.tool_format supports forced calls, and has a trigger if calls
// are optional.
absl::StatusOr<GrammarText::Expression> WriteToolCalls(const ConstraintSpec& spec,
                                                       const SpecialTokens& special,
                                                       const WriteContent& content,
                                                       GrammarText* grammar);

// Writes a reasoning section and then `answer`. If the format has no such section, returns `answer`
// alone. If spec.opens_reasoning, the output begins inside the section; otherwise the section is
// optional. REQUIRES: spec.tool_format is set.
GrammarText::Expression WriteAfterReasoning(const ConstraintSpec& spec,
                                            const SpecialTokens& special,
                                            const GrammarText::Expression& answer,
                                            GrammarText* grammar);

}  // namespace quire::engine
