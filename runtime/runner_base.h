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

// The common part of both runners: the objects that they were created with, and the assignment of
// samples and prompt log-probabilities to blocks of logits rows.
//
// Place:      base of CpuRunner and of CudaRunner::State only.
// Invariants: the blocks of a step are processed in order, and each sample and prompt
//             log-probability once.
// Threads:    those of the runner.
// Lifetime:   model, backend and pool must outlive it.
struct RunnerBase {
  RunnerBase(const Model& the_model, const kernels::Backend& the_backend, cache::KvPool* the_pool,
             const RunnerOptions& the_options);

  // Called before the first block of a step, and again before the first block of its late samples
  // (StepSample::is_late).
  void BeginLogits();
  // Fills sampling_rows with the samples of `pass` that use rows [begin, end) of the step's logits,
  // and sample_indices with their indices in batch.samples. Late samples without is_completed are
  // in no pass. REQUIRES: buffers.logits contains these rows.
  enum class SamplePass : std::uint8_t { kAll, kEarly, kLate };
  void TakeSamples(const StepBatch& batch, std::uint32_t begin, std::uint32_t end, SamplePass pass);
  // Fills logprob_tokens from batch.prompt_logprobs in the same way. Returns the index of the first
  // of these entries in batch.prompt_logprobs.
  std::size_t TakePromptLogprobs(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);

  // Normalizes the hidden states of `pool`, which are the rows of buffers.x from `first` on, and
  // adds them to `sum` in memory of the backend. Processes at most `head_rows` rows at a time.
  absl::Status AddPool(const StepPool& pool, std::uint32_t first, std::uint32_t head_rows,
                       float* sum);

  const Model& model;
  const kernels::Backend& backend;
  cache::KvPool* const pool;
  const RunnerOptions options;
  const models::LayerGroups layers;
  const std::uint32_t text_vocab;
  const std::uint8_t* const has_text;  // null: every id below text_vocab has text
  models::StepBuffers buffers;

  // The samples and log-probabilities of the current block of logits.
  std::vector<kernels::SamplingRow> sampling_rows;
  std::vector<std::uint32_t> sample_indices;
  std::vector<kernels::TokenLogprob> logprob_tokens;

 private:
  const float* LogitsRow(std::uint32_t logits_index, std::uint32_t block_begin) const;

  std::size_t next_sample_ = 0;
  std::size_t next_prompt_logprob_ = 0;
};

StepToken ToStepToken(const kernels::SampledRow& row);
StepToken ToStepToken(const kernels::TokenLogprob& token);

}  // namespace quire::runtime
