#pragma once

// What the compiler of constraints runs: a spec to a grammar, that to a compiled constraint.
//
// Place:      on top of engine/constraint; the server gives it the vocabulary.
// Threads:    the function it makes: any, several at once.
// Lifetime:   the function keeps what it needs.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/constraint/constraint_compiler.h"

namespace quire::engine {

// What an answer can be made of.
struct ConstraintVocabulary {
  std::vector<std::string> tokens;  // as GrammarLibrary::Create has them
  // Special tokens that do not end an answer: their texts, which are UTF-8, and their ids.
  std::vector<std::pair<std::string, std::int32_t>> special = {};
};

// UNIMPLEMENTED / FEATURE_UNSUPPORTED in a build without the library. REQUIRES: ids of special
// tokens are rows of `tokens`, which are empty.
absl::StatusOr<ConstraintCompiler::Build> MakeConstraintBuild(ConstraintVocabulary vocabulary);

}  // namespace quire::engine
