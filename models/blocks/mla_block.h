#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Multi-head latent attention in its absorbed form, as branch.h says: a token's cached row is
// [norm(c), rope(k_pe)], a query head is taken into the latent space by its part of kv_b, attends
// to these rows as one KV head, and what it finds there, a mean of latents, is taken back by the
// other part. Prefill and decode do the same, so that chunks give the same bits. Writes the rows of
// the step's tokens to `place` in the cache. Uses normed and mla of the buffers.
// REQUIRES: CheckBuilt for the backend's device.
absl::Status MlaBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights,
                      const LayerPlace& place);

}  // namespace quire::models
