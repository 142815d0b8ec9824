#pragma once

// Checks the contract of a StepBatch before the step is computed.

#include "absl/status/status.h"
#include "cache_manager/views/kv_params.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// Returns INVALID_ARGUMENT with the entry, its value and the limit in these cases:
// - Rows do not cover token_ids in order, or a position is beyond the context.
// - A token is outside the vocabulary, a page outside the pool, or a state slot outside the slots
//   of limits.num_state_slots.
// - An index is out of range, or a logits_index is below that of the entry before.
// - A limit is exceeded, or StepBatch::kv does not have one entry per layer group.
// `previous_samples` is the number of samples of the previous step, to which token ids below 0
// refer.
absl::Status CheckStepBatch(const StepBatch& batch, const models::ModelSpec& spec,
                            const models::StepLimits& limits, const cache::KvGeometry& pool,
                            std::uint32_t num_groups, std::uint32_t previous_samples = 0);

}  // namespace quire::runtime
