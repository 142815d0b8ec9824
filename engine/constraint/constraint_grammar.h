#pragma once

// Translates a constraint spec to a grammar.
//
// Place:      above the readers of schemas, regular expressions and grammars; grammar_library
//             compiles its result.
// Invariants: a spec that cannot be enforced exactly is rejected with BAD_CONSTRAINT, stage
//             `compile`, and the name of the field, unless its UnenforcedPolicy is kAnnotate.
// Threads:    pure functions.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/special_tokens.h"

namespace quire::engine {

inline constexpr std::size_t kMaxChoices = 256;
inline constexpr std::size_t kMaxChoiceBytes = 1024;

struct ConstraintGrammar {
  std::string text;                     // the grammar, in the EBNF of the grammar library
  std::vector<std::string> unenforced;  // see CompiledConstraint::unenforced()
};

// `special` contains the special tokens that tag markers may name. Kinds without tags need none.
absl::StatusOr<ConstraintGrammar> WriteConstraint(const ConstraintSpec& spec,
                                                  const SpecialTokens& special = {});

}  // namespace quire::engine
