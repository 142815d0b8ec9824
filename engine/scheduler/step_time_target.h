#pragma once

// Chooses how long the step that is being planned may take.
//
// Place:      part of Scheduler; reads the StepTimeModel.
// Invariants: its results depend only on its calls.
// Threads:    engine thread only.
// Lifetime:   the model outlives it.

#include <cstddef>

#include "absl/time/time.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/scheduler_policy.h"
#include "engine/scheduler/step_time_model.h"

namespace quire::engine {

// The properties of a step that its target depends on.
struct StepLoad {
  // True if a client waits for the next token of a decode row. Clients whose prompts are still
  // being computed do not count.
  bool has_waiting_stream = false;
  bool has_several_tenants = false;
  std::size_t num_prompts = 0;  // running or waiting, with tokens left to compute
  std::size_t num_decodes = 0;  // rows of the step
  StepWork decodes;             // the work of these rows
};

class StepTimeTarget {
 public:
  StepTimeTarget(const SchedulerPolicy& policy, const StepTimeModel* model)
      : policy_(policy), model_(model) {}

  // A configured target limits only steps that a stream waits for. The automatic target limits the
  // other steps too, once the model can predict steps without prompts. Returns infinity if there is
  // no target. REQUIRES: `now` does not decrease from call to call.
  absl::Duration Choose(const HotOptions& options, const StepLoad& load, absl::Time now);

 private:
  const SchedulerPolicy policy_;
  const StepTimeModel* const model_;
  absl::Time shared_until_ = absl::InfinitePast();  // until then tenants count as concurrent
};

}  // namespace quire::engine
