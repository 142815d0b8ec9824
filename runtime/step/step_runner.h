#pragma once

// The interface through which the engine runs the model. CpuRunner and CudaRunner compute the
// model, and fakes of the tests compute a known function.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/step/step_batch.h"

namespace quire::runtime {

// Computes the steps of a model.
//
// Threads: the engine thread only. On the CPU backend Run returns after it has computed the step.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Launches the step. `batch` must stay alive and unchanged until the matching Collect, except
  // that its late samples are completed before SampleLate. The arrays that batch.kv and each
  // sample's row.history point to may change as soon as Run returns. After an error the step has no
  // effect: it wrote no page that a later step could read. REQUIRES: fewer than
  // max_steps_in_flight() steps are launched and not collected.
  virtual absl::Status Run(const StepBatch& batch) = 0;

  // Computes the late samples (StepSample::is_late) of the step that was launched last. Between Run
  // and this call the device computes the rest of the step, while the engine computes masks from
  // the tokens of the previous step. If this function fails, Collect returns the error. REQUIRES:
  // the step has late samples; no earlier step is in flight; the row.history of a late sample, if
  // any, includes the token before the sample; SampleLate is called once, before the next Run or
  // Collect.
  virtual void SampleLate(const StepBatch& batch) = 0;

  // Returns the results of the oldest launched step, which are valid until the next Run or Collect.
  // REQUIRES: a step was launched; SampleLate was called if it has late samples.
  virtual absl::StatusOr<const StepResult*> Collect() = 0;

  // Maximum number of steps that are launched and not collected. If it is more than one, a step may
  // use tokens that the previous step samples (StepBatch::token_ids).
  virtual int max_steps_in_flight() const { return 1; }

  // True if the runner computes StepBatch::pools.
  virtual bool can_pool() const { return false; }
};

}  // namespace quire::runtime
