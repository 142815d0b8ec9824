#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/sampling/sampling.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"
#include "runtime/runner_options.h"
#include "runtime/step/step_batch.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

struct Model;

// What the runners of both backends have in common: what they were made of, and which samples and
// prompt logprobs have their logits in which block of rows.
//
// Place:      under the State of either runner, in no other file.
// Invariants: a step's blocks of logits are taken in order, each sample and prompt logprob once.
// Threads:    the runner's.
// Lifetime:   model, backend and pool outlive it.
struct RunnerBase {
  RunnerBase(const Model& the_model, const kernels::Backend& the_backend, cache::KvPool* the_pool,
             const RunnerOptions& the_options);

  // Before the first block of a step, and of its late samples.
  void BeginLogits();
  // Fills sampling_rows with those samples of the pass whose logits are rows [begin, end) of
  // batch.logits_tokens, which lie in buffers.logits, and sample_indices with their places in
  // batch.samples. Late samples without a mask are in no pass.
  enum class SamplePass : std::uint8_t { kAll, kEarly, kLate };
  void TakeSamples(const StepBatch& batch, std::uint32_t begin, std::uint32_t end, SamplePass pass);
  // The same for logprob_tokens and batch.prompt_logprobs, of which it returns the first one's
  // place.
  std::size_t TakePromptLogprobs(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);

  // Adds the pool's rows of the stream, which lie from `first` on, to `sum`, memory of the backend,
  // at most `head_rows` at a time. The tokens of a row lie one behind the other.
  absl::Status AddPool(const StepPool& pool, std::uint32_t first, std::uint32_t head_rows,
                       float* sum);

  const Model& model;
  const kernels::Backend& backend;
  cache::KvPool* const pool;
  const RunnerOptions options;
  const models::LayerGroups layers;
  const std::uint32_t text_vocab;
  const std::uint8_t* const has_text;  // null: every id below text_vocab
  models::StepBuffers buffers;

  // Of one block of logits.
  std::vector<kernels::SamplingRow> sampling_rows;
  std::vector<std::uint32_t> sample_indices;
  std::vector<kernels::TokenLogprob> logprob_tokens;

 private:
  const float* LogitsRow(std::uint32_t logits_index, std::uint32_t block_begin) const;

  std::size_t next_sample_ = 0;
  std::size_t next_prompt_logprob_ = 0;
};

// What a step reports of a sample and of a prompt logprob.
StepToken ToStepToken(const kernels::SampledRow& row);
StepToken ToStepToken(const kernels::TokenLogprob& token);

}  // namespace quire::runtime
