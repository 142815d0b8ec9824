#pragma once

// The inputs of the masks of a request: a constraint, banned text, allowed token ids and repetition
// penalties. A plain value.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint/constraint.h"
#include "kernels/sampling/sampling.h"

namespace quire::engine {

class BannedText;
class RepeatPenalty;

struct MaskRules {
  std::shared_ptr<const CompiledConstraint> constraint;  // null: any text
  std::vector<std::int32_t> end_tokens;                  // end tokens of the constraint's matchers
  std::shared_ptr<const BannedText> banned;              // null: none
  // One bit for each token id, set if the request allows the token; null: all are allowed. The bits
  // are the same at every position, so they need no mask thread.
  std::shared_ptr<const std::vector<std::uint32_t>> allowed = nullptr;
  std::shared_ptr<const RepeatPenalty> repeat_penalty = nullptr;  // includes the prompt; null: none
  // The biases of the request, by ascending ids. Only set if `repeat_penalty` is not null.
  std::vector<kernels::LogitBias> bias = {};

  // Returns whether the mask threads have nothing to compute.
  bool empty() const {
    return constraint == nullptr && banned == nullptr && repeat_penalty == nullptr;
  }
  // Returns whether a mask thread may exclude tokens.
  bool excludes_tokens() const { return constraint != nullptr || banned != nullptr; }
};

}  // namespace quire::engine
