#pragma once

// Creates the build function of the constraint compiler. The function translates a spec to a
// grammar, and the grammar to a compiled constraint.
//
// Place:      on top of engine/constraint; the server provides the vocabulary.
// Threads:    the returned function may run on several threads at once.
// Lifetime:   the returned function owns what it uses.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint_compiler.h"

namespace quire::engine {

// The tokens that an output can consist of.
struct ConstraintVocabulary {
  std::vector<std::string> tokens;  // bytes of each token, see GrammarLibrary::Create
  // Texts (UTF-8) and ids of the special tokens that do not end an output.
  std::vector<std::pair<std::string, std::int32_t>> special = {};
};

// Returns UNIMPLEMENTED / FEATURE_UNSUPPORTED if quire was built without the grammar library.
// REQUIRES: the ids of special tokens are indices of empty elements of `tokens`.
absl::StatusOr<ConstraintCompiler::BuildFunction> MakeConstraintBuildFunction(
    ConstraintVocabulary vocabulary);

}  // namespace quire::engine
