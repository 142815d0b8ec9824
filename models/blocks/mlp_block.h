#pragma once

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/layer_spec.h"
#include "models/weights.h"

namespace quire::models {

// x += down(silu(gate(norm(x))) * up(norm(x))). Uses normed and gate_up. REQUIRES: CheckBuilt.
absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
