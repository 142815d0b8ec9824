#pragma once

// Writes the grammars of specs with tags: free text with constrained sections, and tool calls,
// which are forced or stand in free text.
//
// Place:      above free_text and special_tokens; what stands inside a tag is written by the
//             caller's function.
// Invariants: markers that are special tokens of the vocabulary are those tokens; elsewhere no
//             special token is allowed.
// Threads:    one at a time.

#include <functional>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/special_tokens.h"

namespace quire::engine {

inline constexpr std::size_t kMaxTags = 256;
inline constexpr std::size_t kMaxMarkerBytes = 1024;  // of a begin or an end
// Of all triggers of a spec: each byte is a state of the automaton.
inline constexpr std::size_t kMaxTriggerBytes = 256;

// Writes the content of tag `index`.
using WriteContent = std::function<absl::StatusOr<GrammarText::Expression>(std::size_t index)>;

// kStructuralTags. The status says what is wrong with the tags, or is that of the content.
absl::StatusOr<GrammarText::Expression> WriteStructuralTags(const ConstraintSpec& spec,
                                                            const SpecialTokens& special,
                                                            const WriteContent& content,
                                                            GrammarText* grammar);

// kToolCalls. REQUIRES: spec.tool_format can be forced, and has a trigger where calls are optional.
absl::StatusOr<GrammarText::Expression> WriteToolCalls(const ConstraintSpec& spec,
                                                       const SpecialTokens& special,
                                                       const WriteContent& content,
                                                       GrammarText* grammar);

// The answer, behind the section of reasoning where the format has one: it comes first where
// spec.opens_reasoning, and may elsewhere. REQUIRES: a spec.tool_format.
GrammarText::Expression WriteAfterReasoning(const ConstraintSpec& spec,
                                            const SpecialTokens& special,
                                            const GrammarText::Expression& answer,
                                            GrammarText* grammar);

}  // namespace quire::engine
