#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "runtime/runner_options.h"
#include "runtime/step/step_runner.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

struct Model;

// Computes steps on the CPU backend: copies and clears pages, runs the decoder over all rows, then
// the head, the samples and the prompt logprobs for the rows that ask for logits, in blocks, so
// that the workspace does not grow with the number of prompt log-probabilities.
//
// Place:      under the engine, which knows only StepRunner; above blocks/ and kernels/.
// Invariants: a row's results depend on its own tokens, pages and samples only, never on the other
//             rows of the step, the chunking of its prompt or the number of threads. In steady
//             state a step allocates nothing. A refused batch writes nothing.
// Threads:    Create anywhere; then the engine thread only.
// Lifetime:   model, backend and pool outlive it.
class CpuRunner : public StepRunner {
 public:
  // Returns INVALID_ARGUMENT when the pool's geometry is not the model's or an option is out of
  // range.
  static absl::StatusOr<std::unique_ptr<CpuRunner>> Create(const Model& model,
                                                           const kernels::Backend& backend,
                                                           cache::KvPool* pool,
                                                           const RunnerOptions& options);
  ~CpuRunner() override;

  // For every sample the runner sets row.logits, row.text_vocab and row.has_text.
  // With late samples the head of all rows waits for SampleLate.
  absl::Status Run(const StepBatch& batch) override;
  void SampleLate(const StepBatch& batch) override;
  absl::StatusOr<const StepResult*> Collect() override;
  bool can_pool() const override { return true; }

  // Bytes of activations that it holds and of scratch that it has reserved.
  std::int64_t workspace_bytes() const;

 private:
  struct State;
  explicit CpuRunner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::runtime
