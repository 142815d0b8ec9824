#pragma once

// A step in flight: its plan, the batch given to the runner, and the owners of the results.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/scheduler/step_plan.h"
#include "runtime/step/step_batch.h"

namespace quire::engine {

struct PromptLogprobOwner {
  ScheduledRequest* request;
  std::uint32_t position;  // position of the prompt token that has the log-probability
};

// Place:      filled by BatchBuilder, launched by StepPipeline, read by StepCollector. StepPipeline
//             has one for each step that may be in flight.
// Invariants: batch.rows lists the plan's decodes, then its prefill chunks. batch.samples[i]
//             belongs to sample_owners[i]. Prompt log-probabilities and pools match their owners in
//             the same way. Requests that end while the step is in flight stay alive until it has
//             completed (RequestLifecycle::FreeEnded).
// Threads:    engine thread only.
// Lifetime:   the vectors keep their capacity from step to step.
struct InFlightStep {
  std::uint64_t number = 0;
  StepPlan plan;
  runtime::StepBatch batch;
  std::vector<Sequence*> sample_owners;  // the choices that get the tokens
  std::vector<PromptLogprobOwner> prompt_logprob_owners;
  std::vector<ScheduledRequest*> pool_owners;
  absl::Status launch_error;  // not OK: the runner refused the step, and there is no result
  absl::Time start, planned, launched;
  absl::Duration expected;  // wall time by the step-time model; zero: not known yet
};

}  // namespace quire::engine
