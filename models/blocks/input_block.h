#pragma once

// Inputs per layer (PerLayerInputSpec), and the branch of a layer that multiplies by its input.

#include <cstddef>

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Computes the inputs of all layers from the embeddings in the buffer x, and writes them to the
// buffer layer_inputs. Uses the buffers layer_context and normed. REQUIRES: the model has inputs
// per layer.
absl::Status ComputeLayerInputs(const StepContext& step, const ModelSpec& spec,
                                const Weights& weights);

// Adds the branch of LayerSpec::input of layer `index` to the residual stream (branch.h). Uses the
// buffers gate_up, normed and branch. REQUIRES: ComputeLayerInputs ran in this step.
absl::Status InputBlock(const StepContext& step, const ModelSpec& spec, const LayerWeights& weights,
                        std::size_t index);

}  // namespace quire::models
