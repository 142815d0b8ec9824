#pragma once

// The result of planning: how many tokens of which sequences the coming step computes. Golden-trace
// tests compare it.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_time_model.h"

namespace quire::engine {

struct PlannedRow {
  Sequence* sequence;
  std::uint32_t num_tokens;  // tokens to compute, from sequence->launched() on
};

// The vectors keep their capacity from step to step.
struct StepPlan {
  std::vector<PlannedRow> decodes;         // in order of admission
  std::vector<PlannedRow> prefills;        // in the order in which they got tokens
  std::vector<ScheduledRequest*> started;  // admitted for the first time
  std::vector<Sequence*> preempted;        // lost their pages while this plan was made
  std::uint32_t num_tokens = 0;            // tokens of decodes and prefills
  StepWork work;                           // the same tokens, as the step-time model counts them

  bool empty() const { return decodes.empty() && prefills.empty(); }
  // Calls `call` for each row: first the decodes, then the prefills.
  template <typename Call>
  void ForEachRow(const Call& call) const {
    std::ranges::for_each(decodes, call);
    std::ranges::for_each(prefills, call);
  }
  std::uint32_t prompt_tokens() const {
    std::uint32_t tokens = 0;
    for (const PlannedRow& prefill : prefills) tokens += prefill.num_tokens;
    return tokens;
  }
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
