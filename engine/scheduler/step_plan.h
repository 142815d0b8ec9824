#pragma once

// Who computes how much in the coming step: the scheduler's answer, and what golden traces compare.

#include <cstdint>
#include <vector>

#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_time_model.h"

namespace quire::engine {

struct PlannedChunk {
  Sequence* sequence;
  std::uint32_t num_tokens;  // from sequence->launched() on
};

// The vectors keep their capacity from step to step.
struct StepPlan {
  std::vector<Sequence*> decodes;     // one token each, by admission
  std::vector<PlannedChunk> chunks;   // by admission
  std::vector<ScheduledRequest*> started;  // admitted for the first time
  std::vector<Sequence*> preempted;   // lost their pages while this plan was made
  std::uint32_t num_tokens = 0;       // of decodes and chunks
  StepWork work;                      // the same, as the step-time model counts it

  bool empty() const { return decodes.empty() && chunks.empty(); }
  void Clear() {
    decodes.clear();
    chunks.clear();
    started.clear();
    preempted.clear();
    num_tokens = 0;
    work = {};
  }
};

}  // namespace quire::engine
