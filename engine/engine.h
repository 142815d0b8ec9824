#pragma once

// The continuous-batching engine. It takes requests from any thread, runs one step after another on
// its own thread, and writes tokens to each request's TokenStream.
//
//   RequestIntake (any thread) -> text workers: Tokenizer::Encode, HashPages -> Inbox
//   EngineThread, each step: drain the inbox, expire, schedule, reserve pages, run, publish, emit
//                            tokens
//   output workers: detokenize, match stop strings, write the stream; a match returns as a signal
//
// Place:      above StepRunner and CacheManager; below the server.
// Invariants: every accepted request ends exactly once, in its stream's Finish. Its only
//             pages are then those that steps in flight use. The conservation rules of
//             docs/metrics.md hold.
// Threads:    one thread calls Create and the destructor. Everything else is thread-safe.
// Lifetime:   the runner, tokenizer and clock outlive the engine.

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/published.h"
#include "cache_manager/cache_manager.h"
#include "engine/output/token_stream.h"
#include "engine/output/unread_answers.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/request.h"
#include "engine/request/request_table.h"
#include "engine/request_intake.h"
#include "engine/step/engine_stats.h"

namespace quire::probe {
class Registry;
}
namespace quire::runtime {
class StepRunner;
}
namespace quire::text {
class Tokenizer;
}

namespace quire::engine {

class EngineThread;
class Inbox;
class OutputStage;
class TextStage;

class Engine {
 public:
  // Starts the engine thread and the workers. `metrics` may be null (tests); otherwise it must
  // outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<cache::CacheManager> cache,
                                                        runtime::StepRunner* runner,
                                                        const text::Tokenizer* tokenizer,
                                                        const Clock* clock,
                                                        probe::Registry* metrics);
  // Ends every live request with UNAVAILABLE / SERVER_SHUTDOWN and joins all threads.
  ~Engine();

  // Accepts the request and returns the stream of its output. Rejects it immediately if the engine
  // does not accept requests, the id is in use, a parameter is invalid, the input is too large or a
  // queue is full (docs/api.md, Errors).
  absl::StatusOr<std::shared_ptr<TokenStream>> Accept(
      Request request, QueueFullMetric queue_full_metric = QueueFullMetric::kCounted);

  // Ends a live request of `caller`. Returns false if there is none. The stream finishes with
  // CANCELLED (or DEADLINE_EXCEEDED for kDeadline), and the pages are free at the next step
  // boundary. With `stream`, ends the request only if it writes to that stream. A late Cancel for
  // an ended request then cannot end a new request with the same id.
  bool Cancel(const Caller& caller, absl::string_view id, CancelSource source,
              const TokenStream* stream = nullptr);
  // Ends the selected requests with CANCELLED / ABORTED_BY_ADMIN. Returns INVALID_ARGUMENT /
  // SELECTION_EMPTY if the selection has neither ids nor `all`.
  absl::StatusOr<AbortResult> Abort(const AbortSelection& selection);

  // Rejects new requests with UNAVAILABLE / SERVER_DRAINING. Live requests continue.
  void Drain();
  void Resume();
  // Waits until no request is live. Returns false if `deadline` passes first.
  bool WaitIdle(absl::Time deadline);

  // Checks the options and allocates the memory that longer queues need. Returns INVALID_ARGUMENT
  // with the key that cannot be applied.
  absl::Status PrepareHotOptions(const HotOptions& options);
  // Replaces all hot options. They apply at once to requests accepted from now on, and to steps
  // from the next step boundary on. A lower limit does not end requests that were accepted before.
  // REQUIRES: PrepareHotOptions returned OK for the same options.
  void SetHotOptions(const HotOptions& options);

  // Returns the current value of HotOptions::max_running_sequences.
  std::int32_t max_running_sequences() const { return hot_.Get()->max_running_sequences; }
  std::vector<RequestInfo> ListRequests() const;  // sorted by accept time, id, tenant
  EngineStats GetStats() const;
  // Describes the pages at the next step boundary, with no step in flight. Too slow for every
  // scrape of the metrics. Returns DEADLINE_EXCEEDED if the engine thread does not answer within a
  // second, and UNAVAILABLE if the engine has failed or stops.
  absl::StatusOr<PageSnapshot> GetPageSnapshot();
  // Flushes at the next step boundary. With a positive `idle_timeout`, first waits for the engine
  // to be idle, and returns FAILED_PRECONDITION / NOT_IDLE on timeout.
  absl::StatusOr<cache::FlushCounts> FlushCache(absl::Duration idle_timeout);

  // Liveness: returns false if a step has been due for `stall_timeout` and none has run. Inside a
  // step on the CPU every layer counts as progress. No step is due for a request whose client does
  // not read or whose prompt is being prepared. Always false after the engine has failed.
  bool IsAlive(absl::Duration stall_timeout) const;

  // Runs the checks of all stateful classes at the next step boundary. No step runs meanwhile.
  // O(pages + waiting requests). Returns UNAVAILABLE if the engine has failed or stops.
  absl::StatusOr<IntegrityReport> InspectIntegrity();
  // Returns the first failure of InspectIntegrity.
  absl::Status CheckIntegrity();

 private:
  Engine(const EngineOptions& options, std::unique_ptr<cache::CacheManager> cache,
         runtime::StepRunner* runner, const text::Tokenizer* tokenizer, const Clock* clock,
         probe::Registry* metrics);

  const EngineOptions options_;  // options at start
  const std::unique_ptr<cache::CacheManager> cache_;
  const Clock* const clock_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<UnreadAnswers> unread_answers_ = std::make_shared<UnreadAnswers>();
  EngineProbe probe_;
  AdmissionLimiter limiter_;
  RequestTable table_;
  Published<HotOptions> hot_;
  std::atomic<EngineState> state_{EngineState::kReady};
  // These parts are held by pointer, so that the server does not include their headers.
  std::unique_ptr<OutputStage> output_;
  std::unique_ptr<TextStage> text_;
  std::unique_ptr<RequestIntake> intake_;
  std::unique_ptr<EngineThread> thread_;
};

}  // namespace quire::engine
