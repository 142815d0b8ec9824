#include "engine/request/request.h"

namespace quire::engine {

absl::string_view RequestStateName(RequestState state) {
  static constexpr absl::string_view kNames[kNumRequestStates] = {
      "preparing", "queued", "prefill", "decode", "preempted", "stalled", "finished"};
  return kNames[static_cast<std::size_t>(state)];
}

absl::string_view FinishReasonName(FinishReason reason) {
  static constexpr absl::string_view kNames[kNumFinishReasons] = {
      "eos", "stop_text", "stop_token", "length", "context_full", "constraint_done", "tool_call"};
  return kNames[static_cast<std::size_t>(reason)];
}

absl::string_view CancelSourceName(CancelSource source) {
  // kClient and kApi have the same name.
  static constexpr absl::string_view kNames[kNumCancelSources] = {
      "client",      "client",   "admin",         "deadline",
      "slow_client", "shutdown", "queue_timeout", "revoked"};
  return kNames[static_cast<std::size_t>(source)];
}

}  // namespace quire::engine
