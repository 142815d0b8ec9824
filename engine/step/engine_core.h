#pragma once

// The engine without threads: runs single steps and all work between them. The engine thread calls
// Handle, Expire and Step, and takes the results with TakeOutput.
//
//   Handle, Expire -> RequestLifecycle -> Scheduler
//   Step           -> StepPipeline: Scheduler::Plan, BatchBuilder, StepRunner, StepCollector
//                     MaskGate computes the masks of constrained choices meanwhile
//
// Place:      under Engine; joins its parts, which do the work.
// Invariants: see CheckIntegrity() of its parts. No request past its deadline enters a step.
// Threads:    one: the engine thread, or in tests the thread of the test.
// Lifetime:   the objects passed to the constructor outlive it.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/heartbeat.h"
#include "cache_manager/cache_manager.h"
#include "engine/output/output_item.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/signal.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_meter.h"
#include "engine/step/engine_stats.h"
#include "engine/step/mask_gate.h"
#include "engine/step/output_buffer.h"
#include "engine/step/request_lifecycle.h"
#include "engine/step/step_collector.h"
#include "engine/step/step_pipeline.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

class EngineCore {
 public:
  EngineCore(const EngineOptions& options, cache::CacheManager* cache, runtime::StepRunner* runner,
             const Clock* clock, AdmissionLimiter* limiter, EngineProbe* probe);
  // Not copyable, because its parts point to each other.
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // The coming steps use these options. A step in flight ends as it was planned.
  void SetHotOptions(const std::shared_ptr<const HotOptions>& options);

  void Handle(Signal& signal, absl::Time now);
  void Expire(absl::Time now) { lifecycle_.Expire(now); }
  bool Step(absl::Time now) { return pipeline_.Step(now); }
  void CollectAll() { pipeline_.CollectAll(); }
  void EndAll(absl::Time now) { lifecycle_.EndAll(now); }
  void FailAll(absl::Time now) { lifecycle_.FailAll(now); }
  const absl::Status& fatal_error() const { return pipeline_.fatal_error(); }
  cache::FlushCounts FlushCache();

  absl::Time NextWake() const { return lifecycle_.NextWake(); }
  bool idle() const { return lifecycle_.live().empty(); }
  Heartbeat& heartbeat() { return pipeline_.heartbeat(); }
  const Heartbeat& heartbeat() const { return pipeline_.heartbeat(); }
  Scheduler& scheduler() { return scheduler_; }
  const StepPlan& last_plan() const { return pipeline_.last_plan(); }
  std::size_t steps_in_flight() const { return pipeline_.num_in_flight(); }

  // Clears `out` and swaps it with the output items since the last call.
  void TakeOutput(std::vector<OutputItem>* out) { output_.Take(out); }
  EngineStats Stats(absl::Time now) const;
  // REQUIRES: no step is in flight.
  PageSnapshot DescribePages() const;
  IntegrityReport CheckIntegrity() const;

 private:
  cache::CacheManager* const cache_;
  const Clock* const clock_;
  AdmissionLimiter* const limiter_;
  EngineProbe* const probe_;
  Scheduler scheduler_;
  OutputBuffer output_;
  MaskGate masks_;
  EngineMeter meter_;
  RequestLifecycle lifecycle_;
  StepCollector collector_;
  StepPipeline pipeline_;
};

}  // namespace quire::engine
