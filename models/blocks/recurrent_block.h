#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/recurrent/state_rows.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Returns one part of a layer's states for all batch rows of the step. The part begins `floats`
// floats after the start of the layer's states in a state slot.
kernels::StateRows StateRowsOf(const StepContext& step, const LayerPlace& place,
                               std::int64_t floats);

// Adds the branch of a recurrent layer, the formula of RecurrentSpec, to the residual stream
// (branch.h). Reads and writes the states of the step's rows at `place` in their slots. Prompts and
// generated tokens run the same loop over tokens, so chunking does not change bits. Uses the
// buffers normed and recurrent. REQUIRES: CheckSupported is OK for the backend's device.
absl::Status RecurrentBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place);

}  // namespace quire::models
