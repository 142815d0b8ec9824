#pragma once

// The engine without threads: what happens between two steps, and one step. The engine thread calls
// Handle, Expire and Step; everything that must leave appears in TakeOutput.
//
// With a runner that allows it the engine runs overlapped: while step n is in flight, step n +
// 1 is planned and launched on the assumption that nothing ends in n, then n is collected. What did
// end has a surplus row in n + 1, whose result is dropped. Tokens, log-probabilities and finish
// reasons are those of one step at a time.
//
// The masks of choices with a constraint or banned text are made on threads of their own while the
// device computes what comes before the samples of the same step; a row whose mask is late is
// stalled until it is there.
//
// Place:      under Engine, above Scheduler, CacheManager and StepRunner.
// Invariants: a request ends exactly once, as kRequestEnd, and holds no page by then but those that
//             the step in flight names; no request past its deadline enters a step; a failing
//             request ends no other request; steps launched - steps collected = steps in flight,
//             between 0 and kMaxStepsInFlight.
// Threads:    one (the engine thread; in tests the test's).
// Lifetime:   everything it points to outlives it.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/heartbeat.h"
#include "cache_manager/cache_manager.h"
#include "engine/masks/mask_pool.h"
#include "engine/output/output_item.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/inbox.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/batch_builder.h"
#include "engine/step/engine_stats.h"
#include "engine/step/in_flight_step.h"
#include "engine/step/request_timers.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

// Ends that are not the request's fault say when the process may be back.
inline constexpr absl::Duration kRetryAfterFailure = absl::Seconds(10);
// UNAVAILABLE / DEVICE_ERROR with that delay.
absl::Status DeviceError();

class EngineCore {
 public:
  static constexpr std::size_t kMaxStepsInFlight = 2;

  EngineCore(const EngineOptions& options, cache::CacheManager* cache, runtime::StepRunner* runner,
             const Clock* clock, AdmissionLimiter* queue, EngineProbe* probe);

  void Handle(Signal& signal, absl::Time now);
  // Ends every request whose deadline, queue timeout or reader's patience is over.
  void Expire(absl::Time now);
  // Plans and launches one step, if there is work for one, and collects the oldest one when no more
  // may be in flight or nothing was launched. False when there was nothing to do.
  bool Step(absl::Time now);
  // Collects every step in flight.
  void Settle();
  void EndAll(absl::Time now);
  // Not OK once the device is lost: nothing runs any more.
  const absl::Status& fatal() const { return fatal_; }
  // Ends every live request, because of an error that is not its own. Accepted ones count as
  // failed, others as rejected.
  void FailAll(absl::Time now);
  cache::FlushCounts FlushCache();

  // When Expire has something to do next.
  absl::Time NextWake() const;
  bool idle() const { return live_.empty(); }
  bool has_work() const { return scheduler_.has_work(); }
  bool awaits_step() const { return scheduler_.awaits_step(); }
  // Beats with every step that has run, on the CPU with each of its layers.
  Heartbeat& heartbeat() { return heartbeat_; }
  const Heartbeat& heartbeat() const { return heartbeat_; }
  Scheduler& scheduler() { return scheduler_; }
  const StepPlan& last_plan() const { return *plan_; }
  std::size_t steps_in_flight() const { return num_in_flight_; }

  // Items since the last call, in order; swaps with `out`, so capacity is reused.
  void TakeOutput(std::vector<OutputItem>* out);
  EngineStats Stats(absl::Time now) const;
  // REQUIRES: no step is in flight.
  PageSnapshot DescribePages() const;
  IntegrityReport CheckIntegrity() const;

 private:
  absl::Status CheckSteps() const;

  // How requests come and go: engine_core.cc. Null when the request has ended already.
  ScheduledRequest* Arrive(const std::shared_ptr<AcceptedRequest>& accepted);
  void Prepare(Signal& signal, absl::Time now);
  void EndEarly(ScheduledRequest& live, CancelSource source, absl::Time now,
                const std::string& text = "");
  void Fail(ScheduledRequest& live, absl::Status status, bool invalidate, absl::Time now);
  void End(ScheduledRequest& live, absl::Status status, bool was_accepted, absl::Time now);
  void CancelCompile(const ScheduledRequest& live);
  absl::Status InternalError(absl::string_view what);
  OutputItem& Emit(OutputItem::Kind kind, ScheduledRequest& live, absl::Time now);

  // From a plan to a step on its way: step_launch.cc.
  InFlightStep& flight(std::size_t index) {
    return flights_[(oldest_ + index) % kMaxStepsInFlight];
  }
  void StartPlanned(absl::Time now);
  void Launch(absl::Time start, absl::Time planned);
  bool RunCacheWork(absl::Time now);

  // Choices with masks: step_masks.cc.
  void StartMasks(ScheduledRequest& live);
  void FinishSampling();
  void WaitForMasks(const InFlightStep& step);
  bool HandleMasks(absl::Time now);
  bool AwaitMasks();
  absl::Status CheckMasks() const;

  // What a step that has run leaves: step_collect.cc.
  void CollectOldest();
  void LoseDevice(const absl::Status& error);
  void FailStep(const InFlightStep& flight, const absl::Status& error, absl::Time now);
  void Collect(const InFlightStep& flight, const runtime::StepResult& result, absl::Time now);
  void FailBadRows(const InFlightStep& flight, const runtime::StepResult& result, absl::Time now);
  static std::uint32_t ProvenTokens(const ScheduledRequest& live, std::uint32_t computed);
  void Advance(Sequence& sequence, const runtime::StepRow& row);
  void CollectPromptLogprobs(const InFlightStep& flight, const runtime::StepResult& result,
                             absl::Time now);
  void CollectPools(const InFlightStep& flight, const runtime::StepResult& result);
  void FinishPrompts(const InFlightStep& flight, absl::Time now);
  void CollectSamples(const InFlightStep& flight, const runtime::StepResult& result,
                      absl::Time now);
  void ForkRequest(ScheduledRequest& live);
  void AppendToken(Sequence& sequence, const runtime::StepToken& token, absl::Time now);
  std::optional<FinishReason> FinishAfter(const Sequence& sequence) const;
  void FillEnd(const Sequence& sequence, OutputItem* item) const;
  void FinishChoice(Sequence& sequence, absl::Time now);
  void FinishRequest(ScheduledRequest& live, absl::Time now);

  // The numbers that it shows: engine_stats.cc.
  void RefreshGauge(ScheduledRequest& live);
  void AfterStep(const InFlightStep& flight, absl::Time collected);
  void ShowWork(absl::Time now);
  absl::Duration WallOffset(absl::Time now);
  std::int64_t ExpectedOutputTokens() const;

  const EngineOptions& options_;
  cache::CacheManager* const cache_;
  runtime::StepRunner* const runner_;
  const Clock* const clock_;
  AdmissionLimiter* const queue_;
  EngineProbe* const probe_;
  Heartbeat heartbeat_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  const StepPlan* plan_;
  StepPlan empty_plan_;
  const std::size_t max_in_flight_;
  std::array<InFlightStep, kMaxStepsInFlight> flights_;  // a ring
  std::size_t oldest_ = 0;
  std::size_t num_in_flight_ = 0;
  bool has_late_samples_ = false;  // of the step launched last, which are still to be made
  std::int32_t num_masked_ = 0;    // live requests that have masks
  std::vector<Sequence*> looked_at_;
  std::vector<const ChoiceMask*> awaited_;
  absl::Status fatal_;
  MaskPool masks_;
  std::map<std::uint64_t, std::unique_ptr<ScheduledRequest>> live_;  // by arrival
  // Ended with no step in flight; kept until the next step, since what ended them goes on.
  std::vector<std::unique_ptr<ScheduledRequest>> ended_;
  RequestTimers timers_;
  std::vector<ScheduledRequest*> to_fail_;
  std::vector<OutputItem> output_;
  RateMeter prompt_rate_, generation_rate_;
  // Of choices that came to their end, the last the most.
  std::optional<double> mean_answer_tokens_;
  EndCounts early_ends_{};
  std::int64_t steps_ = 0;
  std::int64_t overlap_steps_ = 0;
  std::int64_t chunked_prefills_ = 0;
  std::int32_t max_step_sequences_ = 0;
  std::int32_t running_ = 0;  // accepted requests by gauge
  std::int32_t waiting_ = 0;
  std::uint64_t next_incident_ = 1;
  absl::Time last_step_;
  absl::Time wall_asked_at_ = absl::InfinitePast();
  absl::Duration wall_offset_;
  absl::Time limiter_told_at_ = absl::InfinitePast();
};

}  // namespace quire::engine
