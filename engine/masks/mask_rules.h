#pragma once

// What the masks of a request are made of: a constraint, banned text, penalties for repetitions.
// A plain value.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint/constraint.h"
#include "kernels/sampling/sampling.h"

namespace quire::engine {

class BannedText;
class RepeatPenalty;

struct MaskRules {
  std::shared_ptr<const CompiledConstraint> constraint;    // null: any text
  std::vector<std::int32_t> end_tokens;                    // end tokens of its matchers
  std::shared_ptr<const BannedText> banned;                // null: none
  std::shared_ptr<const RepeatPenalty> repeats = nullptr;  // behind the prompt; null: none
  // Of the request, by ascending ids; where repeats is not null.
  std::vector<kernels::LogitBias> bias = {};

  bool empty() const { return constraint == nullptr && banned == nullptr && repeats == nullptr; }
  // Whether some tokens may be excluded.
  bool masks() const { return constraint != nullptr || banned != nullptr; }
};

}  // namespace quire::engine
