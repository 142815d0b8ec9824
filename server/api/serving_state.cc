#include "server/api/serving_state.h"

#include "absl/status/status.h"
#include "base/error_reason.h"

namespace quire::server {

absl::string_view LifeStateName(LifeState state) {
  constexpr absl::string_view kNames[kNumLifeStates] = {"loading", "ready", "draining", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

void ServingState::SetState(LifeState state) {
  LifeState now = state_.load(std::memory_order_acquire);
  while (now != LifeState::kFailed &&
         !state_.compare_exchange_weak(now, state, std::memory_order_acq_rel)) {
  }
}

bool ServingState::is_live() const {
  if (state() == LifeState::kFailed || unresponsive_listener() != nullptr) return false;
  const ServedModel* served = model();
  return served == nullptr ||
         served->engine->IsAlive(absl::Nanoseconds(stall_nanos_.load(std::memory_order_acquire)));
}

absl::string_view ServingState::DescribeReadiness() const {
  if (is_ready()) return LifeStateName(LifeState::kReady);
  const LifeState now = state();
  if (now != LifeState::kReady) return LifeStateName(now);
  if (drain_started()) return LifeStateName(LifeState::kDraining);
  return unresponsive_listener() != nullptr ? "a port does not answer"
                                            : "the engine does not answer";
}

absl::StatusOr<const ServedModel*> ServingState::ModelOrError() const {
  if (state() == LifeState::kFailed) {
    return WithReason(absl::UnavailableError("the engine has failed and the process is exiting"),
                      Reason::kDeviceError);
  }
  const ServedModel* served = model();
  if (served == nullptr) {
    return WithReason(absl::UnavailableError("the model is still loading"), Reason::kModelLoading,
                      {}, absl::Seconds(1));
  }
  return served;
}

}  // namespace quire::server
