#pragma once

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// x joins the sum over the chosen experts e of w_e * down_e(act(gate_e(n)) * up_e(n)), n = norm(x),
// plus the shared expert of n, as branch.h says; experts and weights are those of Router
// (kernels/moe/router.h).
//
// Only experts that some row chose are computed, each one's matrices once for all its rows. Sums
// start from zero and run in ascending expert number, the shared expert last, so that a row's bits
// depend on that row alone. Uses normed and moe of the buffers. The host waits for nothing.
// REQUIRES: CheckBuilt.
absl::Status MoeBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
