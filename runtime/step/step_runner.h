#pragma once

// The only way from the engine to the model, and virtual because there are several implementations:
// CpuRunner computes on a device, the tests' fakes compute a known function.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// Threads: all calls from the engine thread. On the CPU backend Run computes before it returns.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Launches the step. `batch` stays unchanged and alive until the matching Collect; what batch.kv
  // points at (lengths and lookup table) and the histories of its samples may change as soon as Run
  // returns. An error means that nothing of the step counts: no page was written in a way that a
  // later step could read.
  // REQUIRES: fewer than max_steps_in_flight() steps are launched and not collected.
  virtual absl::Status Run(const StepBatch& batch) = 0;

  // Samples what Run has left out of the step that was launched last. In the meantime the device
  // computes what comes before, so a mask may be made of the tokens of the step before while this
  // one runs. An error is what Collect returns for the step.
  // REQUIRES: the step has late samples, each with the token before it in `row.history` where that
  // counts tokens; no step before it is in flight; called once, before the next Run or Collect.
  virtual void SampleLate(const StepBatch& batch) = 0;

  // Results of the oldest launched step; valid until the next Run or Collect. REQUIRES: a launched
  // step, with its late samples if it has some.
  virtual absl::StatusOr<const StepResult*> Collect() = 0;

  // How many steps may be launched before the oldest is collected. With more than one, a step may
  // name tokens that the step before it samples (StepBatch::token_ids).
  virtual int max_steps_in_flight() const { return 1; }

  // Whether it computes StepBatch::pools.
  virtual bool can_pool() const { return false; }
};

}  // namespace quire::runtime
