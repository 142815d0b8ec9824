#pragma once

// The only way from the engine to the model, and virtual because there are several implementations:
// ModelRunner computes on a device, the tests' fakes compute a known function.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/step/step_batch.h"

namespace quire::models {

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

  // Results of the oldest launched step; valid until the next Run or Collect. REQUIRES: a launched
  // step.
  virtual absl::StatusOr<const StepResult*> Collect() = 0;

  // How many steps may be launched before the oldest is collected. With more than one, a step may
  // name tokens that the step before it samples (StepBatch::token_ids).
  virtual int max_steps_in_flight() const { return 1; }
};

}  // namespace quire::models
