#pragma once

// Continuous batching: takes requests from any thread, runs one step after another on its own
// thread, and writes tokens to each request's TokenStream.
//
//   Accept (any thread) -> text worker: Tokenizer::Encode, HashPages -> Submit -> AdmissionQueue
//   engine thread, each step: drain messages, expire, schedule, reserve pages, run, publish, hand
//   on tokens output workers: detokenise, match stop strings, write the stream; a match returns as
//   a finish
//
// Place:      above StepRunner and CacheManager; below the server, which knows it only by this
//             header.
// Invariants: every accepted request ends exactly once, in its stream's Finish; all of its pages
//             are back by then; the conservation rules of docs/metrics.md hold.
// Threads:    Create and the destructor from one thread; everything else from any.
// Lifetime:   the runner, tokenizer and clock outlive the engine.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cache_manager/cache_manager.h"
#include "engine/request.h"
#include "engine/tenant_limits.h"
#include "engine/token_stream.h"

namespace quire::probe {
class Registry;
}
namespace quire::models {
class StepRunner;
}
namespace quire::text {
class Tokenizer;
}

namespace quire::engine {

enum class AdmissionMode : std::uint8_t { kSafe, kOvercommit };

// The part of the options that a running engine can change.
struct HotOptions {
  // scheduler.*
  std::int32_t max_step_tokens = 8192;  // at most its value at Create
  std::int32_t prefill_chunk_tokens = 512;
  std::int32_t max_step_prompt_tokens = 512;  // prompt tokens in one step
  // While rows decode, prompts share a step only as far as it is expected to end within this.
  // Absent: no target, or with `auto_step_time_target` 4 times what the rows alone are expected to
  // take, within 20 and 500 ms.
  std::optional<absl::Duration> step_time_target;
  bool auto_step_time_target = false;
  std::int32_t max_running_sequences = 64;  // at most its value at Create
  absl::Duration queue_timeout = absl::InfiniteDuration();
  absl::Duration priority_aging_interval = absl::Seconds(10);
  // limits.*
  ParamLimits limits;  // max_logprobs: at most its value at Create
  std::int32_t max_queued_requests = 1024;
  std::int64_t max_queued_tokens = 4 << 20;
  std::int64_t max_input_bytes = 8 << 20;
  absl::Duration max_request_duration = absl::InfiniteDuration();
  // stream.*
  absl::Duration slow_client_timeout = absl::Seconds(30);
  TenantOptions tenants;
  // kv_cache.*; Create leaves it as the cache has it.
  bool partial_page_reuse = true;
};

// Plain values; the server fills them from the configuration.
struct EngineOptions : HotOptions {
  // model
  std::string model_id;
  std::string fingerprint;      // roots the prefix keys
  std::string kv_dtype;         // shown in quire_kv_cache_info
  std::int32_t vocab_size = 0;  // rows of the output matrix
  std::int32_t max_context_tokens = 0;
  std::vector<std::int32_t> eos_token_ids;
  // scheduler.*
  AdmissionMode admission = AdmissionMode::kSafe;
  // Prompts may find pages with generated tokens. False where the two are computed differently and
  // a warm cache must give the bits of a cold one: then only the sequence that generated them, and
  // choices that share its tokens, find them again.
  bool share_generated_pages = true;
  // stream.*
  std::int32_t stream_queue_tokens = 1024;
  // tokenizer.*
  std::int32_t text_threads = 1;  // text workers, and as many output workers
  // Steps launched before the oldest is collected: the lesser of this and what the runner can do.
  std::int32_t max_steps_in_flight = 2;
  // Called once on the engine thread before anything else. May be empty.
  std::function<void()> on_engine_thread;
  // The engine cannot go on; each is called once, on the engine thread, and may do nothing that
  // waits for the engine. First on_failing, with everything still unanswered: health turns. Then
  // every live request ends with UNAVAILABLE / DEVICE_ERROR, its usage and a retry delay; then
  // on_fatal: the process should end. The status is the runner's (IsDeviceLost of
  // base/cuda_status.h: reason DEVICE_LOST), or INTERNAL / ENGINE_DIED when the engine thread
  // itself came to an end.
  std::function<void(const absl::Status&)> on_failing, on_fatal;
};

// A line of ListRequests.
struct RequestInfo {
  std::string id, model, principal, tenant;
  RequestState state = RequestState::kPreparing;
  absl::Time accept_time, deadline;
  std::int32_t prompt_tokens = 0, output_tokens = 0, kv_pages = 0, priority = 0;
  std::map<std::string, std::string> labels;
};

// kFailed is final: Accept answers UNAVAILABLE / DEVICE_ERROR.
enum class EngineState : std::uint8_t { kReady, kDraining, kStopped, kFailed };

// Requests that ended early, by the state they were in (RequestState) and the cause (CancelSource).
using EndCounts = std::array<std::array<std::int64_t, kNumCancelSources>, kNumRequestStates>;

struct EngineStats {
  EngineState state = EngineState::kReady;
  std::int32_t running = 0, waiting = 0;
  std::int64_t waiting_uncached_tokens = 0;
  cache::CacheStats cache;
  double prompt_tokens_per_second = 0, generation_tokens_per_second = 0;  // mean of the last 10 s
  std::int64_t steps = 0, preemptions = 0;
  std::int64_t steps_ahead = 0;         // launched while another was in flight
  std::int64_t chunked_prefills = 0;    // chunks that did not complete their prompt
  std::int32_t max_step_sequences = 0;  // most sequences in one step so far
  absl::Duration last_step_age;
  EndCounts early_ends{};
};

// Who uses which page between two steps: entry i is page i + 1.
struct PagePicture {
  static constexpr std::int32_t kFree = 0;
  static constexpr std::int32_t kCached = 1;
  static constexpr std::int32_t kShared = 2;      // by several sequences
  static constexpr std::int32_t kWork = 3;        // by copies and clears of steps
  static constexpr std::int32_t kFirstOwner = 4;  // + index into owners: by one sequence
  std::vector<std::int32_t> pages;
  // Ids of requests; one with several choices may occur repeatedly.
  std::vector<std::string> owners;
};

// What AbortRequests selects; at least one criterion must be set.
struct AbortSelection {
  std::vector<std::string> ids;
  bool all = false;
  absl::Duration older_than = absl::ZeroDuration();
  std::string tenant;
  std::string reason_text;
};

struct AbortResult {
  std::int32_t aborted = 0;
  std::vector<std::string> unknown_ids;
};

class Engine {
 public:
  // Starts the engine thread and the workers. `metrics` may be null (tests); otherwise it must
  // outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<cache::CacheManager> cache,
                                                        models::StepRunner* runner,
                                                        const text::Tokenizer* tokenizer,
                                                        const Clock* clock,
                                                        probe::Registry* metrics);
  // Ends every live request with UNAVAILABLE / SERVER_SHUTDOWN and joins all threads.
  ~Engine();

  // Takes responsibility for the request. Refuses at once (docs/api.md section 7: state, id in use,
  // bad parameters, input too large, queue full) or returns the stream on which everything else
  // arrives.
  absl::StatusOr<std::shared_ptr<TokenStream>> Accept(Request request);

  // Ends a live request of `principal`; false when there is none. The stream finishes with
  // CANCELLED (or DEADLINE_EXCEEDED for kDeadline), and its pages are free at the next step
  // boundary. With `stream` only the request that it came from: the reader of a request that is
  // over may still hold its last messages when another one has taken the id.
  bool Cancel(absl::string_view principal, absl::string_view id, CancelSource source,
              const TokenStream* stream = nullptr);
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

  std::vector<RequestInfo> ListRequests() const;  // by accept time, then id
  EngineStats GetStats() const;
  // Made by the engine thread at the next step boundary, with no step in flight: for people who
  // look, not for every scrape. DEADLINE_EXCEEDED when no step ends within a second,
  // RESOURCE_EXHAUSTED without the memory for it, UNAVAILABLE once the engine has died.
  absl::StatusOr<PagePicture> GetPagePicture();
  // Runs at the next step boundary; waits up to `idle_timeout` for the engine to be idle (zero:
  // does not wait), else FAILED_PRECONDITION / NOT_IDLE only when idleness was asked for and did
  // not come.
  absl::StatusOr<cache::FlushCounts> FlushCache(absl::Duration idle_timeout);

  // The heartbeat behind `liveness`: false when work has waited for `stall_timeout` without a
  // finished step.
  bool IsAlive(absl::Duration stall_timeout) const;

  // Runs CacheManager, scheduler and queue checks at the next step boundary.
  absl::Status CheckIntegrity();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine
