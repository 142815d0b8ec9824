#pragma once

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Adds the branch of an MoE layer to the residual stream (branch.h): the sum over the chosen
// experts e of w_e * down_e(act(gate_e(n)) * up_e(n)), where n = norm(x), plus the shared expert of
// n. Router (kernels/moe/router.h) computes the choice and the weights.
//
// Only experts that some row chose are computed, each once for all its rows. Sums start from zero
// and run in ascending expert number, with the shared expert last, so the bits of a row depend on
// that row alone. Uses the buffers normed and moe. The host does not wait for the device.
// REQUIRES: CheckSupported is OK.
absl::Status MoeBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
