#pragma once

// The forward pass: one loop over layers, then the head for the tokens that need logits.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/kv_dispatch.h"
#include "models/layer_spec.h"
#include "models/step_buffers.h"
#include "models/weights.h"

namespace quire::models {

// A step whose tokens, positions, batch_index and row_offsets are filled in `buffers`.
struct DecoderStep {
  const kernels::Backend* backend;
  const kernels::AnyKvCollection* kv;
  StepBuffers* buffers;
  std::uint32_t num_tokens;
  std::uint32_t batch_size;
  // [layers + 2, num_tokens, hidden] in the order of StepBatch, or null.
  float* hidden_out;
};

// Leaves the output of the last layer in buffers->x. Returns the first error of an op.
absl::Status DecoderForward(const ModelSpec& spec, const Weights& weights, const DecoderStep& step);

// logits[i] = head(norm(x[tokens[i]])) for at most kHeadRows tokens, into buffers->logits.
absl::Status DecoderHead(const ModelSpec& spec, const Weights& weights,
                         const kernels::Backend& backend, StepBuffers* buffers,
                         std::span<const std::uint32_t> tokens);

}  // namespace quire::models
