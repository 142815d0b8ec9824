#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// x joins o(attention(rope(norm(qkv(norm(x)))))), as branch.h says, the K and V of the step's
// tokens written to `place` in the cache on the way. Uses normed, qkv and attended.
// REQUIRES: CheckBuilt.
absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place);

}  // namespace quire::models
