#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/recurrent/state_rows.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Returns one part of a layer's states for all batch rows of the step. In each state slot, the part
// begins at `offset_floats` in the layer's states.
kernels::StateRows StateRowsOf(const StepContext& step, const LayerPlace& place,
                               std::int64_t offset_floats);

// Computes the branch of a recurrent layer (RecurrentSpec) and adds it to the residual stream
// (branch.h). For each row of the step, reads and writes the states at `place` in the row's slot.
// Prompts and generated tokens run the same loop over tokens, so chunking does not change bits.
// Uses the buffers `normed` and `recurrent`. REQUIRES: CheckSupported is OK for the backend's
// device.
absl::Status RecurrentBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place);

}  // namespace quire::models
