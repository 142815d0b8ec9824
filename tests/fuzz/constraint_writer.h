#pragma once

// Writes schemas, expressions and grammars that are nearly always well-formed. One byte of the
// input makes each choice, so a fuzzer that changes bytes reaches the code after the parsers.
//
// Place:      used by constraint_fuzz.cc.
// Invariants: equal bytes write equal text, whose size is bounded for any bytes.
// Threads:    pure.

#include <string>

#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"

namespace quire::fuzz {

// REQUIRES: the kind is kJsonSchema, kRegex or kGrammar.
std::string WrittenConstraint(engine::ConstraintKind kind, absl::string_view bytes);

}  // namespace quire::fuzz
