#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Adds the branch o(attention(rope(norm(qkv(norm(x)))))) to the residual stream x (branch.h). If
// the layer has an output gate, the gate multiplies the result of attention. Writes the K and V of
// the step's tokens to `place` in the cache, unless the layer reads those of an earlier layer. Uses
// the buffers normed, qkv and attended. REQUIRES: CheckSupported is OK.
absl::Status AttentionBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place);

}  // namespace quire::models
