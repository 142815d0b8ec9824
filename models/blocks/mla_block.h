#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Adds the branch of multi-head latent attention, in its absorbed form, to the residual stream
// (branch.h). The cached row of a token is [norm(c), rope(k_pe)]. The key part of kv_b maps each
// query head into the latent space. There all heads attend to the cached rows, which act as a
// single KV head. The value part of kv_b maps the results, weighted means of latents, to the values
// of each head. Prefill and decode run the same computation, so chunking does not change bits.
//
// With an IndexSpec the layer attends only to selected keys. A layer without an indexer uses the
// selection that an earlier layer stored in StepBuffers::index. On the CPU, a step whose rows all
// select every key runs dense attention, which gives the same bits.
//
// Writes the rows of the step's tokens to `place` in the cache. Uses the buffers normed, mla and
// index.
// REQUIRES: CheckSupported is OK for the backend's device.
absl::Status MlaBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                      const LayerPlace& place);

}  // namespace quire::models
