#pragma once

// Whether a StepBatch keeps its contract, before anything of it is computed.

#include "absl/status/status.h"
#include "cache_manager/views/kv_params.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// Returns INVALID_ARGUMENT that names the entry, its value and the limit: rows that do not cover
// token_ids in order, a token outside the vocabulary, a position behind the context, an index out
// of range or not ascending, a page outside the pool, more than the limits allow, step inputs of
// another number of layer groups. `previous_samples` counts those of the step launched before,
// which token ids below 0 name.
absl::Status CheckStepBatch(const StepBatch& batch, const models::ModelSpec& spec,
                            const models::StepLimits& limits, const cache::KvGeometry& pool,
                            std::uint32_t num_groups, std::uint32_t previous_samples = 0);

}  // namespace quire::runtime
