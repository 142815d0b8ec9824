#pragma once

// Cases of bench_constraints: schemas and other constraints, each with a valid document.
//
// Place:   used only by bench_constraints.
// Threads: any.

#include <string>
#include <vector>

#include "engine/constraint/constraint.h"

namespace quire::engine {

struct ConstraintCase {
  std::string name;
  std::string schema;
  std::string document;  // valid, and formatted as the masks allow
};

std::vector<ConstraintCase> ConstraintCases();

struct SpecCase {
  std::string name;
  ConstraintSpec spec;
  std::string document;  // empty: only compiled
};

// Returns four kinds of cases: objects with many properties; a string format; counted repetitions;
// forced calls of 1, 8 or 32 tools in several formats.
std::vector<SpecCase> SpecCases();

}  // namespace quire::engine
