#pragma once

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Adds the branch of a short convolution, the formula of ShortConvSpec, to the residual stream
// (branch.h). Its state is the products B * v of the last tokens. Uses the buffers normed and
// recurrent. REQUIRES: CheckSupported is OK for the backend's device.
absl::Status ShortConvBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place);

}  // namespace quire::models
