#pragma once

// The metric families that count requests. They are updated together, so that the conservation
// rules (docs/metrics.md) are true in every scrape.
//
// Place:      part of EngineProbe.
// Invariants: accepted = completed + failed + cancelled + running + waiting.
// Threads:    thread-safe. Rejected and Failed lock the registry, because they may add a series;
//             the other methods are lock-free.
// Lifetime:   the registry outlives it.

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/error_reason.h"
#include "base/probe.h"
#include "engine/request/arrival_counters.h"
#include "engine/request/request.h"

namespace quire::engine {

class RequestProbe {
 public:
  RequestProbe(probe::Registry* registry, const probe::Labels& model,
               const std::string& model_name);

  void Received() { received_.Increment(); }
  void Rejected(Reason reason) { RejectedCounter(registry_, reason).Increment(); }
  // Counts an accepted request, which is waiting.
  void Accepted();
  void MoveToRunning();
  void MoveToWaiting();
  // The next three count the end of an accepted request. `was_running` selects the gauge to
  // decrement.
  void Completed(bool was_running);
  void Failed(bool was_running, absl::StatusCode code);
  void Cancelled(bool was_running, CancelSource source);
  // Counts a request that ended early during its preparation, as accepted and as cancelled.
  void CancelledInPreparation(CancelSource source);
  void ShowWaitingTokens(std::int64_t tokens) { waiting_tokens_.Set(static_cast<double>(tokens)); }
  void ShowMaxRunning(std::int32_t sequences) { max_running_.Set(sequences); }

 private:
  probe::Gauge& GaugeOf(bool is_running) { return is_running ? running_ : waiting_; }

  probe::Registry* const registry_;
  const probe::Labels model_;
  probe::Counter received_, accepted_, completed_;
  std::array<probe::Counter, kNumCancelSources> cancelled_;
  probe::Gauge running_, waiting_, waiting_tokens_, max_running_;
};

}  // namespace quire::engine
