#include "engine/step/early_end.h"

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"

namespace quire::engine {
namespace {

std::string Millis(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Milliseconds(time));
}

}  // namespace

absl::Status EarlyEndStatus(const ScheduledRequest& live, const EarlyEnd& end) {
  const std::string stage = !live.was_scheduled ? "queue" : live.forked ? "decode" : "prefill";
  const std::string tokens =
      absl::StrCat(live.progress().output_tokens.load(std::memory_order_relaxed));
  const absl::Duration age = end.time - live.request.accept_time;
  switch (end.source) {
    case CancelSource::kClient:
      return WithReason(absl::CancelledError("client closed the stream"),
                        Reason::kCancelledByCaller);
    case CancelSource::kApi:
      return WithReason(absl::CancelledError("request was cancelled"), Reason::kCancelledByCaller);
    case CancelSource::kAdmin:
      return WithReason(absl::CancelledError("request was aborted by an operator"),
                        Reason::kAbortedByAdmin, {{"reason_text", end.text}});
    case CancelSource::kDeadline:
      return WithReason(absl::DeadlineExceededError(absl::StrCat(
                            "deadline passed ", Millis(age), " ms after acceptance, in ", stage,
                            ", with ", tokens, " output tokens")),
                        Reason::kTimeout, {{"stage", stage}, {"tokens", tokens}});
    case CancelSource::kSlowClient: {
      const std::string stalled = Millis(end.time - live.client_stalled_since);
      return WithReason(
          absl::CancelledError(absl::StrCat("client read nothing for ", stalled, " ms, limit is ",
                                            Millis(end.slow_client_timeout))),
          Reason::kSlowClient, {{"stalled_ms", stalled}});
    }
    case CancelSource::kShutdown:
      return WithReason(absl::UnavailableError("server is shutting down"), Reason::kServerShutdown);
    case CancelSource::kQueueTimeout:
      return WithReason(
          absl::ResourceExhaustedError(
              absl::StrCat("request waited ", Millis(age), " ms without being scheduled")),
          Reason::kQueueTimeout,
          {{"waited_ms", Millis(age)}, {"cause", live.is_prepared() ? "queue" : "tokenize"}},
          end.retry_delay);
    case CancelSource::kRevoked:
      return WithReason(absl::UnauthenticatedError("the token was revoked while the request ran"),
                        Reason::kTokenInvalid);
  }
  return absl::InternalError("unknown cause of an early end");
}

}  // namespace quire::engine
