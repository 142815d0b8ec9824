#pragma once

// Turns the results of a step that has run into tokens, log-probabilities and ends of requests, and
// publishes the pages that became full.
//
// Place:      between StepPipeline and RequestLifecycle.
// Invariants: rows of requests that have ended since the launch count as computed, and their
//             samples are dropped.
// Threads:    engine thread only.
// Lifetime:   the objects in Parts outlive it.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/engine_probe.h"
#include "engine/request/request.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/in_flight_step.h"
#include "engine/step/mask_gate.h"
#include "engine/step/output_buffer.h"
#include "engine/step/request_lifecycle.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

class StepCollector {
 public:
  struct Parts {
    cache::CacheManager* cache;
    Scheduler* scheduler;
    MaskGate* masks;
    RequestLifecycle* lifecycle;
    OutputBuffer* output;
    EngineProbe* probe;
  };
  StepCollector(std::vector<std::int32_t> eos_token_ids, const Parts& parts);

  // Invalidates the cached pages of sequences that have ended since the launch and whose results
  // are not finite. Returns whether there are any. Called before CacheManager::CompleteStep.
  bool InvalidateEnded(const InFlightStep& flight, const runtime::StepResult& result);
  // Applies the results. Called after CacheManager::CompleteStep.
  void Collect(const InFlightStep& flight, const runtime::StepResult& result, absl::Time now);

  std::int64_t steps() const { return steps_; }  // steps collected so far
  // Number of chunks that did not complete their prompt.
  std::int64_t chunked_prefills() const { return chunked_prefills_; }

 private:
  void FailNonFinite(ScheduledRequest& live, absl::string_view what, absl::Time now);
  void FailBadRows(const InFlightStep& flight, const runtime::StepResult& result, absl::Time now);
  void Advance(Sequence& sequence, const runtime::StepRow& row);
  void CollectPromptLogprobs(const InFlightStep& flight, const runtime::StepResult& result,
                             absl::Time now);
  void FinishPrompts(const InFlightStep& flight, absl::Time now);
  void CollectSamples(const InFlightStep& flight, const runtime::StepResult& result,
                      absl::Time now);
  void Fork(ScheduledRequest& live);
  void AppendToken(Sequence& sequence, const runtime::StepToken& token, absl::Time now);
  std::optional<FinishReason> FinishAfter(const Sequence& sequence) const;

  const std::vector<std::int32_t> eos_token_ids_;
  cache::CacheManager* const cache_;
  Scheduler* const scheduler_;
  MaskGate* const masks_;
  RequestLifecycle* const lifecycle_;
  OutputBuffer* const output_;
  EngineProbe* const probe_;
  std::int64_t steps_ = 0;
  std::int64_t chunked_prefills_ = 0;
};

}  // namespace quire::engine
