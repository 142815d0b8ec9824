#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/sampling/sampling.h"
#include "models/blocks/step_buffers.h"
#include "runtime/memory_plan.h"
#include "runtime/runner_base.h"
#include "runtime/runner_options.h"
#include "runtime/step/step_runner.h"
#include "runtime/step_order.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

struct Model;

// Computes steps on the CPU backend. A step copies and clears pages, runs the decoder over all
// rows, and then the head, the samples and the prompt log-probabilities. The head runs in blocks of
// rows, so that the workspace does not grow with the number of prompt log-probabilities.
//
// Place:      below the engine, which knows only StepRunner; above blocks/ and kernels/.
// Invariants: the results of a row depend only on its own tokens, pages and samples. They do not
//             depend on other rows of the step, the chunking of its prompt or the number of
//             threads. In steady state a step does not allocate. A rejected batch writes nothing.
// Threads:    Create on any thread; then the engine thread only.
// Lifetime:   model, backend and pool must outlive it.
class CpuRunner : public StepRunner, private RunnerBase {
 public:
  // Returns INVALID_ARGUMENT if the pool's geometry does not match the model or an option is out of
  // range.
  static absl::StatusOr<std::unique_ptr<CpuRunner>> Create(const Model& model,
                                                           const kernels::Backend& backend,
                                                           cache::KvPool* pool,
                                                           const RunnerOptions& options);

  // If the step has late samples (StepSample::is_late), SampleLate computes the head, the samples
  // and the prompt log-probabilities of all rows.
  absl::Status Run(const StepBatch& batch) override;
  void SampleLate(const StepBatch& batch) override;
  absl::StatusOr<const StepResult*> Collect() override;
  bool can_pool() const override { return true; }

  // Number of bytes of the activations and of the reserved scratch memory.
  std::int64_t workspace_bytes() const;
  // The state slots of recurrent layers; empty without such layers.
  std::span<std::byte> states() const { return states_.bytes(); }

 private:
  CpuRunner(const Model& model, const kernels::Backend& backend, cache::KvPool* pool,
            const RunnerOptions& options);

  absl::Status Allocate();
  // Runs a step by calling the functions below in order.
  absl::Status Step(const StepBatch& batch);
  absl::Status MakeCollections(const StepBatch& batch);
  // Clears and copies the step's pages.
  absl::Status PreparePages(const StepBatch& batch);
  // Clears and copies one kind of rows in the step's pages: those of the layer slots, or the index
  // rows. `kv` selects the kind.
  absl::Status PreparePagesOf(const StepBatch& batch, const kernels::AnyKvCollection& kv);
  absl::Status Forward(const StepBatch& batch);
  // Returns for each row the number of its last tokens whose output the step needs. Returns an
  // empty span if all layers compute all tokens.
  std::span<const std::uint32_t> WantedTokens(const StepBatch& batch, std::uint32_t batch_size);
  absl::Status RunHead(const StepBatch& batch);
  absl::Status ComputePools(const StepBatch& batch);
  // Compute the samples and prompt log-probabilities whose logits are rows [begin, end) of
  // logits_tokens.
  absl::Status SampleBlock(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);
  absl::Status ScoreBlock(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);

  const models::StepLimits limits_;
  StepOrder order_;
  std::int64_t scratch_bytes_ = 0;                 // reserved in the backend
  std::vector<kernels::AnyKvCollection> kv_;       // one per layer group, all over the same pool
  IndexRows index_rows_;                           // if LayerGroups::index_slots is above 0
  std::optional<kernels::AnyKvCollection> index_;  // index rows of the pool, if it has any
  // Collections and counts for DecoderStep::wanted_tokens; empty if the last layer writes K and V
  // or states.
  std::vector<kernels::AnyKvCollection> tail_kv_;
  std::vector<std::uint32_t> wanted_tokens_;  // [max_rows]
  std::vector<kernels::SampledRow> sampled_;  // results for one block of logits
  DeviceBuffer states_;        // [num_state_slots, layers.state_bytes]; resident when first used
  std::vector<float> pooled_;  // [max_rows, hidden] sums of StepPool so far
  StepResult result_;
  bool has_result_ = false;
  absl::Status late_error_;  // error of SampleLate, which Collect returns
};

}  // namespace quire::runtime
