#pragma once

// The forward pass: one loop over layers, then the head for the tokens that need logits.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/heartbeat.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::kernels {
class Communicator;
}

namespace quire::models {

// A step whose tokens, positions and row_offsets are filled in `buffers`; on a GPU its other
// arrays, too.
struct DecoderStep {
  const kernels::Backend* backend;
  std::span<const kernels::AnyKvCollection> kv;  // one per layer group
  const LayerGroups* layers;
  std::span<const kernels::AttentionPlan* const> plans = {};  // StepContext::plans
  const kernels::cuda::KvTensorMaps* maps =
      nullptr;  // of the pool; null where no kernel reads through maps
  StepBuffers* buffers;
  std::uint32_t num_tokens;
  std::uint32_t batch_size;
  Heartbeat* heartbeat = nullptr;  // beats after each layer; or null
  // Host memory [layers + 2, num_tokens, hidden] in the order of StepBatch, or null. On a GPU it
  // makes the host wait after every layer.
  float* hidden_out = nullptr;
  std::span<const std::uint32_t> batch_index = {};  // StepOrder's; for hidden_out
  // Where spec and weights are a rank's part of a model (divided_checkpoint.h).
  kernels::Communicator* comm = nullptr;
};

// Leaves the output of the last layer in buffers->x. Returns the first error of an op.
absl::Status DecoderForward(const ModelSpec& spec, const Weights& weights, const DecoderStep& step);

// norm(x[i]) for i in [begin, end), into buffers->head_in. REQUIRES: at most limits.head_rows.
absl::Status DecoderNorm(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers, std::uint32_t begin,
                         std::uint32_t end);

// logits[i] = head(norm(x[tokens[i]])), with the spec's factor and soft cap, for at most
// limits.head_rows tokens, into buffers->logits. `tokens` is memory of the backend.
absl::Status DecoderHead(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers,
                         const std::uint32_t* tokens, std::uint32_t num_rows);

}  // namespace quire::models
