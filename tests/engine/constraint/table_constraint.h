#pragma once

// A constraint that lists its answers token by token instead of a grammar, for tests of code that
// handles constraints.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint/constraint.h"

namespace quire::engine {

// Its matchers allow the tokens that continue one of `answers`, and end tokens where an answer is
// complete. REQUIRES: tokens are below `vocab_size`.
std::shared_ptr<const CompiledConstraint> MakeTableConstraint(
    std::uint32_t vocab_size, std::vector<std::vector<std::int32_t>> answers,
    std::int64_t memory_bytes = 100);

}  // namespace quire::engine
