#pragma once

// Continuous batching: takes requests from any thread, runs one step after another on its own
// thread, and writes tokens to each request's TokenStream.
//
//   Accept (any thread) -> text worker: Tokenizer::Encode, HashPages -> Submit -> AdmissionLimiter
//   engine thread, each step: drain messages, expire, schedule, reserve pages, run, publish, hand
//                             on tokens
//   output workers: detokenise, match stop strings, write the stream; a match returns as a finish
//
// Place:      above StepRunner and CacheManager; below the server, which knows it only by this
//             header.
// Invariants: every accepted request ends exactly once, in its stream's Finish; all of its pages
//             are back by then; the conservation rules of docs/metrics.md hold.
// Threads:    Create and the destructor from one thread; everything else from any.
// Lifetime:   the runner, tokenizer and clock outlive the engine.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cache_manager/cache_manager.h"
#include "engine/output/token_stream.h"
#include "engine/request/engine_options.h"
#include "engine/request/request.h"
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

// A line of ListRequests.
struct RequestInfo {
  std::string id, model, principal, tenant;
  RequestState state = RequestState::kPreparing;
  absl::Time accept_time, deadline;
  std::int32_t prompt_tokens = 0, output_tokens = 0, kv_pages = 0, priority = 0;
  std::map<std::string, std::string> labels;

  Caller caller() const { return {tenant, principal}; }
};

// Which requests AbortRequests ends: those that meet every criterion that is set. The ids are of
// any caller; without ids `all` must say that this is meant.
struct AbortSelection {
  std::vector<std::string> ids = {};
  bool all = false;
  absl::Duration older_than = absl::ZeroDuration();  // since they were accepted
  std::string tenant = {};
  std::string reason_text = {};  // told to the callers, selects nothing
};

struct AbortResult {
  std::int32_t aborted = 0;
  std::vector<std::string> unknown_ids;  // that no live request has
};

// What a caller of Accept does when no place is free: nothing, or it comes again with the request.
enum class WhenFull : std::uint8_t { kIsRefused, kComesAgain };

// Whether a request was refused for want of a place, of its tenant or of all.
bool IsFull(const absl::Status& status);

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

  // Takes responsibility for the request. Refuses at once (docs/api.md, Errors: state, id in use,
  // bad parameters, input too large, queue full) or returns the stream on which everything else
  // arrives. A refusal for want of a place is in the metrics, unless the caller comes again.
  absl::StatusOr<std::shared_ptr<TokenStream>> Accept(Request request,
                                                      WhenFull when_full = WhenFull::kIsRefused);

  // Ends a live request of `caller`; false when there is none. The stream finishes with
  // CANCELLED (or DEADLINE_EXCEEDED for kDeadline), and its pages are free at the next step
  // boundary. With `stream` only the request that it came from: the reader of a request that is
  // over may still hold its last messages when another one has taken the id.
  bool Cancel(const Caller& caller, absl::string_view id, CancelSource source,
              const TokenStream* stream = nullptr);
  // Ends them with CANCELLED / ABORTED_BY_ADMIN. INVALID_ARGUMENT / SELECTION_EMPTY without ids and
  // without `all`.
  absl::StatusOr<AbortResult> Abort(const AbortSelection& selection);

  // Refuses new requests with UNAVAILABLE / SERVER_DRAINING; live ones go on.
  void Drain();
  void Resume();
  // True when no request is live; waits until then or until `deadline`.
  bool WaitIdle(absl::Time deadline);

  // Whether SetHotOptions can do it; takes the memory that longer queues need. INVALID_ARGUMENT
  // names the key, RESOURCE_EXHAUSTED the memory that is missing.
  absl::Status PrepareHotOptions(const HotOptions& options);
  // Replaces all of them: for requests accepted from now on at once, for steps at the next step
  // boundary. Requests that were accepted under the old ones go on: a lower limit ends none of
  // them.
  // REQUIRES: PrepareHotOptions said OK to the same options.
  void SetHotOptions(const HotOptions& options);

  std::vector<RequestInfo> ListRequests() const;  // by accept time, id, tenant
  EngineStats GetStats() const;
  // Made by the engine thread at the next step boundary, with no step in flight: for people who
  // look, not for every scrape. DEADLINE_EXCEEDED when no step ends within a second,
  // RESOURCE_EXHAUSTED without the memory for it, UNAVAILABLE once the engine has died or ends.
  absl::StatusOr<PageSnapshot> GetPageSnapshot();
  // Runs at the next step boundary; waits up to `idle_timeout` for the engine to be idle (zero:
  // does not wait), else FAILED_PRECONDITION / NOT_IDLE only when idleness was asked for and did
  // not come.
  absl::StatusOr<cache::FlushCounts> FlushCache(absl::Duration idle_timeout);

  // The heartbeat behind `liveness`: false when a step has been due for `stall_timeout` and none
  // has run; inside a step on the CPU every layer counts. Clients that do not read and prompts that
  // are being prepared are no work for a step. False for good once the engine has failed.
  bool IsAlive(absl::Duration stall_timeout) const;

  // Runs the checks of all stateful classes at the next step boundary: O(pages + waiting requests)
  // in which no step runs. UNAVAILABLE once the engine has died or ends.
  absl::StatusOr<IntegrityReport> InspectIntegrity();
  // The same, as a status.
  absl::Status CheckIntegrity();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine
