#pragma once

#include "absl/status/status.h"
#include "kernels/elementwise/activation.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// The activation, clamp and offset of an MLP, for GatedProduct.
kernels::GateShape GateShapeOf(const MlpSpec& mlp);

// x joins down(act(gate(norm(x))) * up(norm(x))), as branch.h says. Uses normed and gate_up.
// REQUIRES: CheckBuilt.
absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
