#pragma once

// From a spec to the grammar that stands for it.
//
// Place:      above the readers of schemas, expressions and grammars; what it gives goes to
//             grammar_library.
// Invariants: a spec that is not supported exactly is refused, BAD_CONSTRAINT, stage `compile`,
//             with the field, unless its UnenforcedPolicy is kAnnotate.
// Threads:    pure.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/special_tokens.h"

namespace quire::engine {

inline constexpr std::size_t kMaxChoices = 256;
inline constexpr std::size_t kMaxChoiceBytes = 1024;

struct ConstraintGrammar {
  std::string text;                     // in the EBNF of the grammar library
  std::vector<std::string> unenforced;  // as CompiledConstraint::unenforced()
};

// `special`: the tokens that markers of tags may be; none are needed for other kinds.
absl::StatusOr<ConstraintGrammar> WriteConstraint(const ConstraintSpec& spec,
                                                  const SpecialTokens& special = {});

}  // namespace quire::engine
