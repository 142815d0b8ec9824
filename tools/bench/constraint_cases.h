#pragma once

// What bench_constraints measures: schemas with a document each that is valid, and sets of tools.
//
// Place:   of bench_constraints alone.
// Threads: any.

#include <string>
#include <vector>

#include "engine/constraint/constraint.h"

namespace quire::engine {

struct ConstraintCase {
  std::string name;
  std::string schema;
  std::string document;  // in the canonical form that masks allow
};

std::vector<ConstraintCase> ConstraintCases();

struct ForcedCallsCase {
  std::string name;
  ConstraintSpec spec;
};

// Calls of 1, 8 and 32 tools in some formats.
std::vector<ForcedCallsCase> ForcedCallsCases();

}  // namespace quire::engine
