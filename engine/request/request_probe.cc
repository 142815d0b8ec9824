#include "engine/request/request_probe.h"

#include "engine/request/probe_labels.h"

namespace quire::engine {

RequestProbe::RequestProbe(probe::Registry* registry, const probe::Labels& model,
                           const std::string& model_name)
    : registry_(registry), model_(model) {
  received_ = ReceivedCounter(registry_, model_name);
  accepted_ = registry_->AddCounter("quire_requests_accepted_total",
                                    "Requests admitted to the queue.", model);
  completed_ = registry_->AddCounter("quire_requests_completed_total",
                                     "Requests whose choices all finished, or whose prompt is "
                                     "scored or embedded.",
                                     model);
  // The series of other reasons and codes are added on their first event (Rejected, Failed). The
  // usual series start at 0, because a rate over a series that appears with its first event misses
  // that event.
  RejectedCounter(registry_, Reason::kQueueFull);
  for (const auto code : {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable}) {
    registry_->AddCounter("quire_requests_failed_total",
                          "Accepted requests that ended with an error.",
                          With(model, "code", absl::StatusCodeToString(code)));
  }
  for (int i = 0; i < kNumCancelSources; ++i) {
    const auto source = static_cast<CancelSource>(i);
    cancelled_[static_cast<std::size_t>(i)] = registry_->AddCounter(
        "quire_requests_cancelled_total", "Accepted requests that were ended early.",
        With(model, "source", CancelSourceName(source)));
  }
  running_ = registry_->AddGauge("quire_requests_running", "Requests in the running batch.", model);
  waiting_ =
      registry_->AddGauge("quire_requests_waiting",
                          "Accepted requests that do not run, preempted ones included.", model);
  waiting_tokens_ =
      registry_->AddGauge("quire_requests_waiting_tokens",
                          "Prompt tokens of waiting requests that are not cached.", model);
  max_running_ =
      registry_->AddGauge("quire_running_sequences_limit", "Maximum sequences per step.", model);
}

void RequestProbe::Accepted() {
  const probe::Registry::Update update(registry_);
  accepted_.Increment();
  waiting_.Add(1);
}

void RequestProbe::MoveToRunning() {
  const probe::Registry::Update update(registry_);
  waiting_.Add(-1);
  running_.Add(1);
}

void RequestProbe::MoveToWaiting() {
  const probe::Registry::Update update(registry_);
  running_.Add(-1);
  waiting_.Add(1);
}

void RequestProbe::Completed(bool was_running) {
  const probe::Registry::Update update(registry_);
  completed_.Increment();
  GaugeOf(was_running).Add(-1);
}

void RequestProbe::Failed(bool was_running, absl::StatusCode code) {
  probe::Counter failed = registry_->AddCounter(
      "quire_requests_failed_total", "Accepted requests that ended with an error.",
      With(model_, "code", absl::StatusCodeToString(code)));
  const probe::Registry::Update update(registry_);
  failed.Increment();
  GaugeOf(was_running).Add(-1);
}

void RequestProbe::Cancelled(bool was_running, CancelSource source) {
  const probe::Registry::Update update(registry_);
  cancelled_[static_cast<std::size_t>(source)].Increment();
  GaugeOf(was_running).Add(-1);
}

void RequestProbe::CancelledInPreparation(CancelSource source) {
  const probe::Registry::Update update(registry_);
  accepted_.Increment();
  cancelled_[static_cast<std::size_t>(source)].Increment();
}

}  // namespace quire::engine
