#pragma once

// Accepts requests from any thread, and cancels, aborts and lists the live ones.
//
// Place:      part of Engine. Accepted requests go to the TextStage and, as signals, to the engine
//             thread.
// Invariants: an accepted request is in the RequestTable, counted by the AdmissionLimiter and
//             submitted to the TextStage. A rejected request is in none of these.
// Threads:    thread-safe.
// Lifetime:   the options and the objects in Parts outlive it.

#include <atomic>
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
#include "base/published.h"
#include "engine/output/token_stream.h"
#include "engine/output/unread_answers.h"
#include "engine/request/accepted_request.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/request.h"
#include "engine/request/request_table.h"
#include "engine/step/engine_stats.h"

namespace quire::engine {

class Inbox;
class TextStage;

// One request in the result of ListRequests.
struct RequestInfo {
  std::string id, model, principal, tenant;
  RequestState state = RequestState::kPreparing;
  absl::Time accept_time, deadline;
  std::int32_t prompt_tokens = 0, output_tokens = 0, kv_pages = 0, priority = 0;
  std::map<std::string, std::string> labels;

  Caller caller() const { return {tenant, principal}; }
};

// Selects the requests that Abort ends. A request is selected if it meets every criterion that is
// set. The ids may belong to any caller. Without ids, `all` must be set to confirm that the other
// criteria select requests of all callers.
struct AbortSelection {
  std::vector<std::string> ids = {};
  bool all = false;
  absl::Duration older_than = absl::ZeroDuration();  // since they were accepted
  std::string tenant = {};
  std::string reason_text = {};  // sent to the callers, selects nothing
};

struct AbortResult {
  std::int32_t aborted = 0;
  std::vector<std::string> unknown_ids;  // ids without a live request
};

// Whether the metrics count a request that Accept rejects because the queue is full. A caller that
// retries passes kNotCounted, so that the failed attempts are not counted.
enum class QueueFullMetric : std::uint8_t { kCounted, kNotCounted };

// Returns whether a request was rejected because a queue limit of its tenant or of the server was
// reached.
bool IsFull(const absl::Status& status);

// Returns the error of calls after the engine has stopped.
absl::Status ShutdownError(const AdmissionLimiter& limiter);

class RequestIntake {
 public:
  struct Parts {
    const Clock* clock;
    const Published<HotOptions>* hot;
    const std::atomic<EngineState>* state;
    AdmissionLimiter* limiter;
    RequestTable* table;
    TextStage* text;
    EngineProbe* probe;
    std::shared_ptr<Inbox> inbox;
    std::shared_ptr<UnreadAnswers> unread;
  };
  // `can_pool`: StepRunner::can_pool.
  RequestIntake(const EngineOptions& options, bool can_pool, Parts parts);

  // See Engine.
  absl::StatusOr<std::shared_ptr<TokenStream>> Accept(Request request,
                                                      QueueFullMetric queue_full_metric);
  bool Cancel(const Caller& caller, absl::string_view id, CancelSource source,
              const TokenStream* stream);
  absl::StatusOr<AbortResult> Abort(const AbortSelection& selection);
  std::vector<RequestInfo> ListRequests() const;

 private:
  absl::Status CheckState() const;
  absl::Status CheckConstraint(const Request& request) const;
  absl::Status CheckRequest(const Request& request, const HotOptions& hot) const;
  absl::StatusOr<std::shared_ptr<TokenStream>> TryAccept(Request request);
  std::shared_ptr<AcceptedRequest> MakeAccepted(Request request, const HotOptions& hot);
  absl::Status Enqueue(const std::shared_ptr<AcceptedRequest>& live);
  void PostCancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source,
                  std::string text);

  const EngineOptions& options_;
  const bool can_pool_;
  const Parts parts_;
  std::atomic<std::uint64_t> next_arrival_{1};
};

}  // namespace quire::engine
