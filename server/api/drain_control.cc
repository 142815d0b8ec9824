#include "server/api/drain_control.h"

#include <algorithm>
#include <utility>

#include "base/error_reason.h"
#include "base/logging.h"
#include "base/status.h"

namespace quire::server {

DrainControl::DrainControl(ServingState* state, const Clock* clock, absl::Duration default_timeout,
                           std::function<void()> request_exit)
    : state_(state),
      clock_(clock),
      default_timeout_(default_timeout),
      request_exit_(std::move(request_exit)) {}

absl::Duration DrainControl::default_timeout() const {
  MutexLock lock(&mutex_);
  return default_timeout_;
}

void DrainControl::SetDefaultTimeout(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  default_timeout_ = timeout;
}

absl::Status DrainControl::Begin(absl::Duration timeout, bool exit_after) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, state_->ModelOrError());
  std::function<void()> request_exit;
  {
    MutexLock lock(&mutex_);
    deadline_ = clock_->Now() + timeout;
    if (exit_after) {
      state_->SetExiting();
      request_exit = std::exchange(request_exit_, nullptr);
    }
  }
  state_->SetDrainStarted(true);
  state_->SetState(LifeState::kDraining);
  served->engine->Drain();
  log::Info("server", "draining", {{"timeout", timeout}, {"exit_after", exit_after}});
  if (request_exit) request_exit();
  return absl::OkStatus();
}

void DrainControl::ShortenDeadline(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  deadline_ = std::min(deadline_, clock_->Now() + timeout);
}

absl::Status DrainControl::Resume() {
  if (state_->exiting()) {
    return WithReason(absl::FailedPreconditionError("the process is exiting"),
                      Reason::kShuttingDown);
  }
  const ServedModel* served = state_->model();
  if (served == nullptr || state_->state() != LifeState::kDraining) return absl::OkStatus();
  {
    MutexLock lock(&mutex_);
    deadline_ = absl::InfiniteFuture();
  }
  served->engine->Resume();
  state_->SetState(LifeState::kReady);
  state_->SetDrainStarted(false);
  log::Info("server", "resumed");
  return absl::OkStatus();
}

bool DrainControl::WaitDrained() {
  // Cancelled requests end at the next step boundary.
  constexpr absl::Duration kCancelTimeout = absl::Seconds(2);
  const ServedModel* served = state_->model();
  if (served == nullptr) return true;
  // Another Begin may change the deadline in the meantime.
  while (state_->state() == LifeState::kDraining) {
    const absl::Time until = deadline();
    const absl::Time now = clock_->Now();
    if (served->engine->WaitIdle(std::min(until, now + absl::Milliseconds(200)))) return true;
    if (now < until) continue;
    CancelAll(served->engine);
    return served->engine->WaitIdle(clock_->Now() + kCancelTimeout);
  }
  return false;
}

void DrainControl::Tick() {
  if (state_->state() != LifeState::kDraining || clock_->Now() < deadline()) return;
  const ServedModel* served = state_->model();
  if (served != nullptr) CancelAll(served->engine);
}

void DrainControl::CancelAll(engine::Engine* engine) {
  for (const engine::RequestInfo& request : engine->ListRequests()) {
    engine->Cancel(request.caller(), request.id, engine::CancelSource::kShutdown);
  }
}

absl::Time DrainControl::deadline() const {
  MutexLock lock(&mutex_);
  return deadline_;
}

}  // namespace quire::server
