#pragma once

// The live requests: how they arrive, start, stall, expire and end.
//
// Place:      part of EngineCore. Adds requests to Scheduler and MaskGate, removes them, and writes
//             their first and last output items.
// Invariants: see CheckIntegrity(). A request ends exactly once, with kRequestEnd. At that point,
//             its only pages are those that steps in flight use. A failing request ends no other
//             request.
// Threads:    engine thread only.
// Lifetime:   the options and the objects in Parts outlive it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/signal.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_meter.h"
#include "engine/step/mask_gate.h"
#include "engine/step/output_buffer.h"
#include "engine/step/request_timers.h"

namespace quire::engine {

// Retry delay of errors that the request did not cause.
inline constexpr absl::Duration kRetryAfterFailure = absl::Seconds(10);
// Returns UNAVAILABLE / DEVICE_ERROR with this delay.
absl::Status DeviceError();

class RequestLifecycle {
 public:
  struct Parts {
    Scheduler* scheduler;
    MaskGate* masks;
    EngineMeter* meter;
    OutputBuffer* output;
    AdmissionLimiter* limiter;
    EngineProbe* probe;
    const Clock* clock;
  };
  // Requests by their arrival number.
  using LiveRequests = std::map<std::uint64_t, std::unique_ptr<ScheduledRequest>>;

  RequestLifecycle(const EngineOptions& options, const Parts& parts);

  // The timeout applies to requests that are stalled now or later.
  void SetSlowClientTimeout(absl::Duration timeout) { slow_client_timeout_ = timeout; }

  // The next four functions handle signals. Signals of one request come from several threads, so
  // the first signal of any kind counts as its arrival. Arrive returns null if the request has
  // already ended.
  ScheduledRequest* Arrive(const std::shared_ptr<AcceptedRequest>& accepted);
  void Prepare(Signal& signal, absl::Time now);
  void Cancel(const Signal& signal, absl::Time now);
  void EndStoppedChoice(const Signal& signal, absl::Time now);

  // Ends every request that is past its deadline, its queue timeout or the slow-client timeout.
  void Expire(absl::Time now);
  // Returns the time at which Expire must be called next.
  absl::Time NextWake() const;

  // Reports to the scheduler which running and preempted requests are stalled by their output.
  void ReportStalls(absl::Time now);
  // Applies the plan before its step runs. A request that starts no longer counts towards the queue
  // limits. Its masks are started, and its kStarted item is added to the output. Preemptions and
  // running requests are counted in the metrics.
  void PublishPlan(const StepPlan& plan, absl::Time now);
  // Ends choices whose constraint is complete, and requests whose masks cannot be computed. Returns
  // whether something has ended.
  bool EndMasked(absl::Time now);

  // Called when the choice has ended by itself. Frees its pages. If it was the last choice, ends
  // the request.
  void FinishChoice(Sequence& sequence, absl::Time now);
  // Called when the request has ended by itself.
  void FinishRequest(ScheduledRequest& live, absl::Time now);
  // `invalidate`: see Scheduler::Remove. Does nothing if the request has ended.
  void Fail(ScheduledRequest& live, absl::Status status, bool invalidate, absl::Time now);
  // Fails each of `requests` with a separate INTERNAL error. Sorts the vector, which may contain
  // duplicates.
  void FailEach(std::vector<ScheduledRequest*>* requests, absl::string_view what, absl::Time now);
  // Ends every live request with DeviceError(). The metrics count prepared requests as failed,
  // others as rejected.
  void FailAll(absl::Time now);
  // Ends every live request because the engine stops.
  void EndAll(absl::Time now);
  // Frees ended requests that no step in flight uses.
  void FreeEnded();

  const LiveRequests& live() const { return live_requests_; }
  absl::Status CheckIntegrity() const;

 private:
  // A request that has ended. It is kept until step `last_step` has completed.
  struct EndedRequest {
    std::uint64_t last_step;
    std::unique_ptr<ScheduledRequest> request;
  };

  void Start(ScheduledRequest& live, absl::Time now);
  void EndEarly(ScheduledRequest& live, CancelSource source, absl::Time now,
                const std::string& text = "");
  void End(ScheduledRequest& live, absl::Status status, bool was_accepted, absl::Time now);
  void CancelCompile(const ScheduledRequest& live);
  absl::Status InternalError(absl::string_view what);

  const EngineOptions& options_;
  absl::Duration slow_client_timeout_;
  Scheduler* const scheduler_;
  MaskGate* const masks_;
  EngineMeter* const meter_;
  OutputBuffer* const output_;
  AdmissionLimiter* const limiter_;
  EngineProbe* const probe_;
  const Clock* const clock_;
  LiveRequests live_requests_;
  std::vector<EndedRequest> ended_requests_;
  RequestTimers timers_;
  std::vector<ScheduledRequest*> slow_requests_;  // scratch of Expire
  std::uint64_t next_incident_ = 1;
};

}  // namespace quire::engine
