#pragma once

// Who computes how much in the coming step: the scheduler's answer, and what golden traces compare.

#include <cstdint>
#include <vector>

#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_time_model.h"

namespace quire::engine {

// What a decode row computes in a step: the token that was sampled last. Everything that counts
// on it takes it from here.
inline constexpr std::uint32_t kDecodeTokens = 1;

struct PlannedDecode {
  Sequence* sequence;
};

struct PlannedPrefill {
  Sequence* sequence;
  std::uint32_t num_tokens;  // from sequence->launched() on
};

// The vectors keep their capacity from step to step.
struct StepPlan {
  std::vector<PlannedDecode> decodes;      // by admission
  std::vector<PlannedPrefill> prefills;    // in the order in which they got tokens
  std::vector<ScheduledRequest*> started;  // admitted for the first time
  std::vector<Sequence*> preempted;        // lost their pages while this plan was made
  std::uint32_t num_tokens = 0;            // of decodes and prefills
  StepWork work;                           // the same, as the step-time model counts it

  bool empty() const { return decodes.empty() && prefills.empty(); }
  void Clear() {
    decodes.clear();
    prefills.clear();
    started.clear();
    preempted.clear();
    num_tokens = 0;
    work = {};
  }
};

}  // namespace quire::engine
