#pragma once

// What bench_constraints measures: schemas and other constraints, with a document each that is
// valid.
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

struct SpecCase {
  std::string name;
  ConstraintSpec spec;
  std::string document;  // empty: only compiled
};

// Objects of more and less properties, a format, repetitions that are counted, and forced calls of
// 1, 8 and 32 tools in some formats.
std::vector<SpecCase> SpecCases();

}  // namespace quire::engine
