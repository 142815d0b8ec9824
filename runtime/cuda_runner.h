#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend/backend.h"
#include "runtime/memory_plan.h"
#include "runtime/runner_options.h"
#include "runtime/step/step_runner.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

struct Model;
struct SelfCheckReport;

// Computes steps on a GPU, up to two ahead of the host. One copy from rotating pinned buffers
// uploads tokens, lengths and the changed parts of the lookup tables. Page copies, attention
// planner, decoder, head and sampler follow on the same stream, and an event marks the end of the
// step. A kernel inserts the tokens that the previous step samples.
//
//   Run(n)      check, order, pack | copy, scatter | pages, plan, decoder, head, samples | event
//   SampleLate  late samples | event, instead of the event of Run
//   Run(n + 1)  the same, while the device is busy with n
//   Collect()   waits for n's event, reads its slot of results
//
// A step of at most kMaxGraphRows rows, all with one generated token, runs its decoder and head as
// a captured graph, unless pools or hidden states are requested. There is one graph per bucket of
// rows (GraphBucket). Create loads the code of all kernels and then captures all graphs, so a step
// does neither. The kernels read the step's number of rows and the state slots of these rows from
// device memory, because the arguments of a graph's kernels are fixed.
//
// Place:      below the engine, which knows only StepRunner; beside CpuRunner; above blocks/ and
//             kernels/.
// Invariants: the results of a row depend only on its own tokens, their class (prompt or
//             generated), its pages and samples. They do not depend on other rows, the chunking of
//             its prompt, graphs or the number of steps in flight. Create allocates everything that
//             PlanDeviceMemory counts, and a step allocates nothing. Graphs stay within their share
//             of memory.
// Threads:    Create may run on any thread. The engine thread calls everything else.
// Lifetime:   model, backend and pool must outlive it. The destructor waits for launched steps.
class CudaRunner : public StepRunner {
 public:
  // If the model is divided among GPUs, each kernel is loaded at its first use, not by Create.
  // Returns INVALID_ARGUMENT if an option is out of range, if the communicator belongs to another
  // rank or backend, if the pool's geometry does not match the model, or if the types of
  // activations and pages do not match. Returns RESOURCE_EXHAUSTED if an allocation fails.
  // REQUIRES: the model was loaded on `backend`, a CUDA backend; the pool is in device memory.
  static absl::StatusOr<std::unique_ptr<CudaRunner>> Create(const Model& model,
                                                            const kernels::Backend& backend,
                                                            cache::KvPool* pool,
                                                            const RunnerOptions& options);
  ~CudaRunner() override;

  // After an error with the reason DEVICE_LOST the process must exit.
  absl::Status Run(const StepBatch& batch) override;
  void SampleLate(const StepBatch& batch) override;
  absl::StatusOr<const StepResult*> Collect() override;
  // Returns 1 for a model with recurrent layers, because a step whose results are discarded would
  // already have overwritten the only copy of its rows' states.
  int max_steps_in_flight() const override;
  bool can_pool() const override { return true; }

  // Compares the kernels with reference kernels (self_check.h), on the memory of this runner and
  // the pages of the pool. Errors are those of RunSelfCheck. After DEADLINE_EXCEEDED the runner
  // must not be destroyed. REQUIRES: no step has run, and no page holds tokens.
  absl::Status CheckKernels(absl::Duration limit, SelfCheckReport* report);
  // Makes Run and Collect return DEADLINE_EXCEEDED if they wait for the device after `deadline`.
  // After that error the runner must not be destroyed. With InfiniteFuture, the default, waiting
  // has no limit.
  void LimitWaits(absl::Time deadline);

  // All state slots, in device memory.
  std::span<std::byte> states();

  // The memory that Create allocated, without the pool and the weights.
  const RunnerMemory& memory() const;
  // Number of steps that ran as a graph, and number of graphs.
  std::uint64_t graph_steps() const;
  std::uint32_t num_graphs() const;

 private:
  struct State;
  explicit CudaRunner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::runtime
