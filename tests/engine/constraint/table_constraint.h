#pragma once

// A constraint that knows no grammar: the answers are listed, token by token. For tests of what
// handles constraints.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint/constraint.h"

namespace quire::engine {

// Its matchers allow the tokens that continue one of `answers`, and end tokens where one is whole.
// REQUIRES: tokens are below `vocab_size`.
std::shared_ptr<const CompiledConstraint> MakeTableConstraint(
    std::uint32_t vocab_size, std::vector<std::vector<std::int32_t>> answers,
    std::int64_t memory_bytes = 100);

}  // namespace quire::engine
