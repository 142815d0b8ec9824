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

absl::Status DrainControl::Begin(absl::Duration delay, absl::Duration timeout, bool exit_after) {
  QUIRE_RETURN_IF_ERROR(state_->ModelOrError().status());
  std::function<void()> request_exit;
  {
    MutexLock lock(&mutex_);
    timeout_ = timeout;
    if (exit_after) {
      state_->SetExiting();
      request_exit = std::exchange(request_exit_, nullptr);
    }
    state_->SetDrainStarted(true);
    if (state_->state() == LifeState::kDraining || delay <= absl::ZeroDuration()) {
      StopAdmission();
    } else {
      admit_until_ = std::min(admit_until_, clock_->Now() + delay);
      log::Info("server", "not ready, still admitting requests",
                {{"for", admit_until_ - clock_->Now()}});
    }
  }
  state_changed_.NotifyAll();
  if (request_exit) request_exit();
  return absl::OkStatus();
}

void DrainControl::StopAdmission() {
  admit_until_ = absl::InfiniteFuture();
  if (state_->state() == LifeState::kFailed) return;  // no request is live or admitted any more
  deadline_ = clock_->Now() + timeout_;
  state_->SetState(LifeState::kDraining);
  state_->model()->engine->Drain();
  log::Info("server", "draining", {{"timeout", timeout_}, {"exit_after", state_->exiting()}});
}

void DrainControl::SkipDelay() {
  MutexLock lock(&mutex_);
  if (!is_delayed()) return;
  StopAdmission();
  state_changed_.NotifyAll();
}

void DrainControl::ShortenDeadline(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  deadline_ = std::min(deadline_, clock_->Now() + timeout);
}

absl::Status DrainControl::Resume() {
  MutexLock lock(&mutex_);
  if (state_->state() == LifeState::kFailed) return state_->ModelOrError().status();
  if (state_->exiting()) {
    return WithReason(absl::FailedPreconditionError("the process is exiting"),
                      Reason::kShuttingDown);
  }
  if (!is_delayed() && state_->state() != LifeState::kDraining) return absl::OkStatus();
  admit_until_ = absl::InfiniteFuture();
  deadline_ = absl::InfiniteFuture();
  state_->model()->engine->Resume();
  state_->SetState(LifeState::kReady);
  state_->SetDrainStarted(false);
  state_changed_.NotifyAll();
  log::Info("server", "resumed");
  return absl::OkStatus();
}

void DrainControl::WaitDelay() {
  // Interval at which the state is checked, because the engine may fail during the wait.
  constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
  MutexLock lock(&mutex_);
  while (is_delayed() && state_->state() == LifeState::kReady) {
    const absl::Time now = clock_->Now();
    if (now >= admit_until_) return StopAdmission();
    state_changed_.WaitUntil(&mutex_, std::min(admit_until_, now + kPollInterval));
  }
}

bool DrainControl::WaitDrained() {
  // Cancelled requests end at the next step boundary.
  constexpr absl::Duration kCancelTimeout = absl::Seconds(2);
  const ServedModel* served = state_->model();
  if (served == nullptr) return true;
  WaitDelay();
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
  {
    MutexLock lock(&mutex_);
    if (clock_->Now() >= admit_until_) StopAdmission();
  }
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
