#pragma once

// Inputs that all layers of a step share.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cache_manager/views/state_step_inputs.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"

namespace quire::kernels {
class Communicator;
}

namespace quire::models {

struct RopeAngles {
  const float* cosines;  // [num_tokens, rotary size / 2]
  const float* sines;
};

// The slots with the states of recurrent layers, and which of them each row of the step reads and
// writes. Empty if the model has no recurrent layers.
struct StepStates {
  std::byte* memory = nullptr;  // slot 0
  std::int64_t slot_bytes = 0;
  cache::StateStepInputs inputs = {};
};

// Tokens of the step are sorted by batch row: row b owns [row_offsets[b], row_offsets[b + 1]).
struct StepContext {
  const kernels::Backend* backend;
  std::span<const kernels::AnyKvCollection> kv;          // one per layer group
  std::span<const kernels::AttentionPlan* const> plans;  // one per layer group; none on the CPU
  // TMA maps of the pool, one per layer group; none on the CPU. Null: kernels without maps run.
  std::span<const kernels::cuda::KvTensorMaps* const> maps;
  StepBuffers* buffers;
  std::span<const RopeAngles> angles;  // one per rope table
  std::uint32_t num_tokens;
  std::uint32_t batch_size;  // row_offsets has batch_size + 1 elements
  std::uint32_t hidden;
  StepStates states = {};
  kernels::Communicator* comm = nullptr;  // null: the weights are the whole model
  // Index rows, with the lookup table of layer group 0; null if no layer has an indexer.
  const kernels::AnyKvCollection* index = nullptr;

  // Both return null on the CPU.
  const kernels::AttentionPlan* plan(const LayerPlace& place) const {
    return plans.empty() ? nullptr : plans[place.group];
  }
  const kernels::cuda::KvTensorMaps* maps_of(const LayerPlace& place) const {
    return maps.empty() ? nullptr : maps[place.group];
  }
};

}  // namespace quire::models
