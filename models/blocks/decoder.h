#pragma once

// The forward pass: one loop over layers, then the head for the tokens that need logits.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/heartbeat.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"
#include "models/blocks/step_context.h"
#include "models/blocks/tail_rows.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::kernels {
class Communicator;
}

namespace quire::models {

// The tokens that the tail layers (tail_rows.h) compute on a GPU.
struct DeviceTail {
  TailArrays arrays;
  std::span<const kernels::AnyKvCollection> kv;  // DecoderStep::kv with arrays.cache_lengths
  absl::FunctionRef<absl::Status()> plan;        // plans attention for these tokens
};

// A step. The caller has filled tokens, positions and row_offsets in `buffers`, and on a GPU also
// the arrays in device memory that describe the step.
struct DecoderStep {
  const kernels::Backend* backend;
  std::span<const kernels::AnyKvCollection> kv;  // one per layer group
  const LayerGroups* layers;
  std::span<const kernels::AttentionPlan* const> plans = {};      // StepContext::plans
  std::span<const kernels::cuda::KvTensorMaps* const> maps = {};  // StepContext::maps
  StepBuffers* buffers;
  std::uint32_t num_tokens;
  std::uint32_t batch_size;
  Heartbeat* heartbeat = nullptr;  // beats after each layer; null: none
  // Hidden states in host memory, [layers + 2, num_tokens, hidden], in the order of StepBatch;
  // null: not returned. If set, the host waits for a GPU after every layer.
  float* hidden_out = nullptr;
  std::span<const std::uint32_t> batch_index = {};  // StepOrder::batch_index(), for hidden_out
  StepStates states = {};
  kernels::Communicator* comm = nullptr;  // set if the model is divided (divided_checkpoint.h)
  const kernels::AnyKvCollection* index = nullptr;  // StepContext::index
  // If not empty, the tail layers (tail_rows.h) compute only the last wanted_tokens[b] tokens of
  // each row b. If empty, they compute all tokens.
  std::span<const std::uint32_t> wanted_tokens = {};
  const std::uint32_t* cache_lengths = nullptr;            // used with `wanted_tokens`
  std::span<const kernels::AnyKvCollection> tail_kv = {};  // `kv` with buffers->tail_lengths
  // GPU only, in place of `wanted_tokens`: the tokens that the tail layers compute. Null: all
  // tokens. If set, buffers->x has only the rows of these tokens afterwards.
  const DeviceTail* tail = nullptr;
};

// Computes all layers. The output of the last one is buffers->x. Returns the first error of an op.
absl::Status DecoderForward(const ModelSpec& spec, const Weights& weights, const DecoderStep& step);

// Writes norm(x[i]) for i in [begin, end) to buffers->head_in. REQUIRES: at most limits.head_rows
// rows.
absl::Status DecoderNorm(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers, std::uint32_t begin,
                         std::uint32_t end);

// Writes logits[i] = head(norm(x[tokens[i]])), with logit_scale and logit_softcap of the spec, to
// buffers->logits. `tokens` is in the backend's memory. REQUIRES: num_rows <= limits.head_rows.
absl::Status DecoderHead(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers,
                         const std::uint32_t* tokens, std::uint32_t num_rows);

}  // namespace quire::models
