#pragma once

// Counts the requests and steps of the engine, and publishes them as metrics and as EngineStats.
// Reports the remaining work to AdmissionLimiter, which computes its retry delays from it.
//
// Place:      part of EngineCore; RequestLifecycle and StepPipeline report to it.
// Invariants: see CheckIntegrity(). running + waiting is the number of accepted requests that have
//             not ended.
// Threads:    engine thread only.
// Lifetime:   the objects in Parts outlive it.

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_probe.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_stats.h"
#include "engine/step/in_flight_step.h"

namespace quire::engine {

class EngineMeter {
 public:
  struct Parts {
    const cache::CacheManager* cache;
    const Scheduler* scheduler;
    const Clock* clock;
    AdmissionLimiter* limiter;
    EngineProbe* probe;
  };
  explicit EngineMeter(const Parts& parts);

  // Counts a request as accepted and waiting. Called when its prompt is prepared.
  void CountAccepted();
  // Counts the request as running if one of its sequences has a row, and as waiting otherwise.
  void RefreshGauge(ScheduledRequest& live);
  // Counts the end of an accepted request.
  void CountEnd(const ScheduledRequest& live);
  void CountEarlyEnd(RequestState state, CancelSource source);
  // Counts a choice that finished normally with `output_tokens` tokens.
  void CountFinishedChoice(std::int32_t output_tokens);
  // Counts a step that has ended and whose collection started at `collect_start`. Returns the wall
  // time of the step. For an overlapped step, this time starts at the end of the previous step.
  absl::Duration CountStep(const InFlightStep& flight, absl::Time collect_start);
  // Publishes the page counts and reports the remaining work to the limiter. Called after a step,
  // and when choices end without one.
  void PublishWork(absl::Time now);
  // Publishes the cache statistics. Pages evicted since the last call are counted under
  // `eviction_cause`.
  void PublishCacheStats(EvictionCause eviction_cause) {
    probe_->cache.Update(cache_->stats(), eviction_cause);
  }

  // Returns the statistics without the counts that StepCollector and StepPipeline keep.
  EngineStats Stats(absl::Time now) const;
  // `live`: every live request.
  absl::Status CheckIntegrity(std::span<const ScheduledRequest* const> live) const;

 private:
  absl::Duration WallOffset(absl::Time now);
  std::int64_t ExpectedOutputTokens() const;

  const cache::CacheManager* const cache_;
  const Scheduler* const scheduler_;
  const Clock* const clock_;
  AdmissionLimiter* const limiter_;
  EngineProbe* const probe_;
  RateMeter prompt_rate_, generation_rate_;
  // Exponential moving average of output lengths, over choices that finished normally.
  std::optional<double> mean_answer_tokens_;
  EndCounts early_ends_{};
  std::int32_t num_running_ = 0;  // accepted requests with a row
  std::int32_t num_waiting_ = 0;  // accepted requests without a row
  std::int32_t max_step_sequences_ = 0;
  absl::Time last_step_;
  absl::Time limiter_update_time_ = absl::InfinitePast();
  absl::Time wall_read_time_ = absl::InfinitePast();
  absl::Duration wall_offset_;
};

}  // namespace quire::engine
