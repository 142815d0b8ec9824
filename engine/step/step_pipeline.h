#pragma once

// Runs steps: lets the scheduler plan each step, launches it on the runner, and passes the result
// of the oldest step to the collector.
//
// If the runner allows it, step n + 1 is planned and launched while step n is in flight. The plan
// assumes that no sequence ends in step n. Then step n is collected. A sequence that did end has a
// surplus row in step n + 1, whose result is dropped. Tokens, log-probabilities and finish reasons
// are the same as if only one step were in flight.
//
// Place:      part of EngineCore; between Scheduler and StepRunner.
// Invariants: see CheckIntegrity(). Steps launched minus steps collected are the steps in flight,
//             between 0 and kMaxStepsInFlight.
// Threads:    engine thread only.
// Lifetime:   the objects in Parts outlive it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/heartbeat.h"
#include "cache_manager/cache_manager.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/batch_builder.h"
#include "engine/step/engine_meter.h"
#include "engine/step/in_flight_step.h"
#include "engine/step/mask_gate.h"
#include "engine/step/request_lifecycle.h"
#include "engine/step/step_collector.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

class StepPipeline {
 public:
  static constexpr std::size_t kMaxStepsInFlight = 2;

  struct Parts {
    cache::CacheManager* cache;
    runtime::StepRunner* runner;
    Scheduler* scheduler;
    RequestLifecycle* lifecycle;
    StepCollector* collector;
    MaskGate* masks;
    EngineMeter* meter;
    const Clock* clock;
  };
  StepPipeline(std::int32_t max_steps_in_flight, const Parts& parts);

  // Plans and launches one step if there is work for it. Collects the oldest step if the limit of
  // steps in flight is reached, or if nothing was launched. Returns false if there was nothing to
  // do.
  bool Step(absl::Time now);
  // Collects every step in flight.
  void CollectAll();

  // Returns an error after the device was lost. No further step runs then.
  const absl::Status& fatal_error() const { return fatal_error_; }
  // The heartbeat is signalled at least after every step, and on the CPU also after each layer.
  Heartbeat& heartbeat() { return heartbeat_; }
  const Heartbeat& heartbeat() const { return heartbeat_; }
  const StepPlan& last_plan() const { return *plan_; }
  std::size_t num_in_flight() const { return num_in_flight_; }
  std::int64_t overlap_steps() const { return overlap_steps_; }  // launched while one was in flight

  absl::Status CheckIntegrity() const;

 private:
  InFlightStep& flight(std::size_t index) {
    return flights_[(oldest_index_ + index) % kMaxStepsInFlight];
  }
  void Launch(absl::Time start, absl::Time planned);
  void FinishSampling();
  bool RunCacheWork(absl::Time now);
  void CollectOldest();
  void LoseDevice(const absl::Status& error);
  void FailStep(const InFlightStep& flight, const absl::Status& error, absl::Time now);

  cache::CacheManager* const cache_;
  runtime::StepRunner* const runner_;
  Scheduler* const scheduler_;
  RequestLifecycle* const lifecycle_;
  StepCollector* const collector_;
  MaskGate* const masks_;
  EngineMeter* const meter_;
  const Clock* const clock_;
  Heartbeat heartbeat_;
  BatchBuilder builder_;
  const std::size_t max_in_flight_;
  std::array<InFlightStep, kMaxStepsInFlight> flights_;  // a ring
  std::size_t oldest_index_ = 0;
  std::size_t num_in_flight_ = 0;
  absl::Duration expected_;  // expected time of the last launched step
  // True until SampleLate computes the late samples (StepSample::is_late) of the last launched
  // step.
  bool has_late_samples_ = false;
  StepPlan empty_plan_;
  const StepPlan* plan_ = &empty_plan_;
  std::vector<ScheduledRequest*> failing_requests_;  // scratch of FailStep
  std::int64_t overlap_steps_ = 0;
  absl::Status fatal_error_;
};

}  // namespace quire::engine
