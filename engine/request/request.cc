#include "engine/request/request.h"

namespace quire::engine {

absl::string_view RequestStateName(RequestState state) {
  switch (state) {
    case RequestState::kPreparing:
      return "preparing";
    case RequestState::kQueued:
      return "queued";
    case RequestState::kPrefill:
      return "prefill";
    case RequestState::kDecode:
      return "decode";
    case RequestState::kPreempted:
      return "preempted";
    case RequestState::kStalled:
      return "stalled";
    case RequestState::kFinished:
      return "finished";
  }
  return "unknown";
}

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopText:
      return "stop_text";
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kConstraintDone:
      return "constraint_done";
    case FinishReason::kToolCall:
      return "tool_call";
  }
  return "unknown";
}

absl::string_view CancelSourceName(CancelSource source) {
  switch (source) {
    case CancelSource::kClient:
    case CancelSource::kApi:
      return "client";
    case CancelSource::kAdmin:
      return "admin";
    case CancelSource::kDeadline:
      return "deadline";
    case CancelSource::kSlowClient:
      return "slow_client";
    case CancelSource::kShutdown:
      return "shutdown";
    case CancelSource::kQueueTimeout:
      return "queue_timeout";
    case CancelSource::kRevoked:
      return "revoked";
  }
  return "unknown";
}

}  // namespace quire::engine
