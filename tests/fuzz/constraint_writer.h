#pragma once

// Writes schemas, expressions and grammars that are nearly always well-formed, each choice by one
// byte of the input: a fuzzer that changes bytes meets what stands behind the parsers.
//
// Place:      of constraint_fuzz.cc.
// Invariants: the same bytes write the same text; it is bounded, whatever the bytes.
// Threads:    pure.

#include <string>

#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"

namespace quire::fuzz {

// REQUIRES: the kind is kJsonSchema, kRegex or kGrammar.
std::string WrittenConstraint(engine::ConstraintKind kind, absl::string_view bytes);

}  // namespace quire::fuzz
