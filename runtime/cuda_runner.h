#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "runtime/memory_plan.h"
#include "runtime/runner_options.h"
#include "runtime/step/step_runner.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

struct Model;

// Computes steps on a GPU, up to two ahead of the host: one copy from rotating pinned buffers
// brings tokens, lengths and the changed parts of the lookup table; pages, planner, decoder, head
// and sampler follow on one stream; an event marks the end. Tokens that the step before samples are
// put in their places on the device.
//
//   Run(n)      check, order, pack | copy, scatter | pages, plan, decoder, head, samples | event
//   SampleLate  late samples | event, in place of that of Run
//   Run(n + 1)  the same, while the device is busy with n
//   Collect()   waits for n's event, reads its slot of results
//
// A step in which every row has one generated token runs its decoder and head as a captured graph,
// one per bucket of rows (1, 2, 4, 8, 16, 24, ...), captured after the first step of that size has
// run without one.
//
// Place:      under the engine, which knows only StepRunner; beside CpuRunner; above blocks/ and
//             kernels/.
// Invariants: a row's results depend on its own tokens, their class, its pages and samples only:
//             never on the other rows, the chunking of its prompt, graphs, or how many steps are in
//             flight. Create allocates everything that PlanDeviceMemory counts, a step nothing;
//             graphs stay inside their share.
// Threads:    Create anywhere; then the engine thread only.
// Lifetime:   model, backend and pool outlive it. What was launched has ended when it is destroyed.
class CudaRunner : public StepRunner {
 public:
  // Returns INVALID_ARGUMENT when the pool's geometry is not the model's, an option is out of range
  // or the communicator of another rank or backend, or activations and pages do not go together;
  // RESOURCE_EXHAUSTED without memory.
  // REQUIRES: a CUDA backend, on which the model was loaded, and a pool in device memory.
  static absl::StatusOr<std::unique_ptr<CudaRunner>> Create(const Model& model,
                                                            const kernels::Backend& backend,
                                                            cache::KvPool* pool,
                                                            const RunnerOptions& options);
  ~CudaRunner() override;

  // An error that IsDeviceLost says so of is final: the process must end.
  absl::Status Run(const StepBatch& batch) override;
  void SampleLate(const StepBatch& batch) override;
  absl::StatusOr<const StepResult*> Collect() override;
  int max_steps_in_flight() const override;
  bool can_pool() const override { return true; }

  // What Create allocated, apart from the pool and the weights.
  const RunnerMemory& memory() const;
  // Steps that ran as a graph, and graphs that exist.
  std::uint64_t graph_steps() const;
  std::uint32_t num_graphs() const;

 private:
  struct State;
  explicit CudaRunner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::runtime
