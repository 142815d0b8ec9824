#pragma once

// A step on its way: what was planned, what the runner was given, and to whom the results belong.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/scheduler/step_plan.h"
#include "runtime/step/step_batch.h"

namespace quire::engine {

struct SampleOwner {
  Sequence* sequence;  // the choice that gets the token
};

struct PromptLogprobOwner {
  ScheduledRequest* request;
  std::uint32_t position;  // of the prompt token whose logprob it is
};

struct PoolOwner {
  ScheduledRequest* request;
};

// Place:      filled by BatchBuilder, launched and collected by EngineCore, which keeps one for
//             each step that may be in flight.
// Invariants: batch.rows are the plan's decodes, then its chunks; batch.samples and sample_owners
//             run in parallel, and so do prompt logprobs and pools. What it points to lives until
//             it is collected: requests that end meanwhile are kept in `ended`.
// Threads:    engine thread only.
// Lifetime:   the vectors keep their capacity from step to step.
struct InFlightStep {
  std::uint64_t number = 0;
  StepPlan plan;
  runtime::StepBatch batch;
  std::vector<SampleOwner> sample_owners;
  std::vector<PromptLogprobOwner> prompt_logprob_owners;
  std::vector<PoolOwner> pool_owners;
  std::vector<std::unique_ptr<ScheduledRequest>> ended;
  absl::Status launch_error;  // not OK: the runner refused it, there is nothing to collect
  absl::Time start, planned, launched;
  absl::Duration expected;  // wall time by the step-time model; zero: nothing is known yet
};

}  // namespace quire::engine
