#pragma once

// The engine's metric families (docs/metrics.md). The order of the updates keeps the conservation
// rules true in every scrape.
//
// Place:      the engine thread, Accept and the output workers update it, and the registry's scrape
//             reads it.
// Invariants: accepted = completed + failed + cancelled + running + waiting. Page states sum to all
//             pages. Computed and cached prompt tokens change together with the hit counters.
// Threads:    every method from any thread; lock-free.
// Lifetime:   the registry outlives it.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/error_reason.h"
#include "base/probe.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/request.h"

namespace quire::engine {

enum class DiscardCause : std::uint8_t { kAfterStop, kCancelled, kLateMask };
enum class StepKind : std::uint8_t { kPrefill, kDecode, kMixed };
enum class EvictionCause : std::uint8_t { kAllocation, kFlush, kInvalidate };

struct PhaseTimes {
  absl::Duration time_to_first_token, prefill, decode;
};

struct StepNumbers {
  StepKind kind = StepKind::kDecode;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_sequences = 0;
  absl::Duration wall, schedule, prepare, output;  // the remaining part of wall is the runner's
  absl::Duration expected;  // the predicted wall time; zero: there was no prediction
};

class EngineProbe {
 public:
  struct Options {
    std::string model_name;
    std::int32_t max_context_tokens = 0;
    std::uint32_t page_size = 0;
    std::uint32_t num_pages = 0;
    std::string kv_dtype;
  };
  // If `registry` is null, the probe creates its own.
  EngineProbe(probe::Registry* registry, const Options& options);

  void Received() { received_.Increment(); }
  void Rejected(Reason reason);
  void Accepted();  // the request waits from now on
  void MoveToRunning();
  void MoveToWaiting();
  // These count the end of an accepted request; `was_running` selects the gauge to decrement.
  void Completed(bool was_running);
  void Failed(bool was_running, absl::StatusCode code);
  void Cancelled(bool was_running, CancelSource source);
  // Counts a request that ended during preparation as accepted and cancelled.
  void CancelledInPreparation(CancelSource source);

  void ObserveTokenize(absl::Duration time) { tokenize_.Observe(Seconds(time)); }
  void ObserveQueue(absl::Duration time) { queue_.Observe(Seconds(time)); }
  void FirstTokenOfChoice() { first_tokens_.fetch_add(1, std::memory_order_relaxed); }
  void ObserveInterToken(absl::Duration time) { inter_token_.Observe(Seconds(time)); }
  void ObserveEnd(absl::Duration e2e) { e2e_.Observe(Seconds(e2e)); }
  void ObservePhases(const PhaseTimes& times);
  void ObserveCompleted(std::int32_t prompt_tokens, absl::Duration margin);
  // Counts the calls of a choice whose answer is parsed in `format`.
  void ToolsParsed(absl::string_view format, std::int32_t calls, std::int32_t failures);
  void ObserveChoice(FinishReason reason, std::int32_t tokens, absl::Duration decode);

  // At first admission: `prompt_tokens` were looked up (0: no lookup), and `cached_tokens` were
  // found.
  void PrefixLookup(std::int32_t prompt_tokens, std::int32_t cached_tokens);
  void PromptComputed(std::uint32_t tokens) { prompt_compute_.Increment(tokens); }
  void Recomputed(std::uint32_t tokens) { recomputed_.Increment(tokens); }
  void Preempted() { preemptions_.Increment(); }
  void AddGenerated(std::int32_t tokens) { generation_.Increment(tokens); }
  void AddDiscarded(DiscardCause cause, std::int32_t tokens) {
    discarded_[static_cast<std::size_t>(cause)].Increment(tokens);
  }
  void ExpiredTokens(std::uint32_t tokens) { expired_.Increment(tokens); }
  // Records the time to compute a mask.
  void MaskMade(absl::Duration time) {
    masks_made_.Increment();
    mask_seconds_.Observe(Seconds(time));
  }
  void MaskLate() { masks_late_.Increment(); }
  void NonFinite() { non_finite_.Increment(); }
  void InvariantViolated() { violations_.Increment(); }
  // `wall_end` is the end of the step in wall-clock time.
  void StepRan(const StepNumbers& step, absl::Time wall_end);
  void ShowCache(const cache::CacheStats& stats, EvictionCause since_last);
  void ShowWaitingTokens(std::int64_t tokens) { waiting_tokens_.Set(static_cast<double>(tokens)); }

  std::int64_t preemptions() const { return static_cast<std::int64_t>(preemptions_.value()); }
  // Number of choices that have a first token. Together with the counters it closes the token
  // balance (rule 7).
  std::int64_t first_tokens() const { return first_tokens_.load(std::memory_order_relaxed); }
  const probe::Registry& registry() const { return *registry_; }

 private:
  static double Seconds(absl::Duration time) { return absl::ToDoubleSeconds(time); }
  void AddRequestFamilies(const probe::Labels& model, const Options& options);
  void AddTokenFamilies(const probe::Labels& model);
  void AddStepFamilies(const probe::Labels& model);
  void AddCacheFamilies(const probe::Labels& model, const Options& options);
  probe::Gauge& GaugeOf(bool is_running) { return is_running ? running_ : waiting_; }

  std::unique_ptr<probe::Registry> own_registry_;
  probe::Registry* const registry_;
  probe::Labels model_;
  std::atomic<std::int64_t> first_tokens_{0};
  probe::Counter received_, accepted_, completed_;
  std::array<probe::Counter, kNumCancelSources> cancelled_;
  std::array<probe::Counter, kNumFinishReasons> choices_;
  probe::Gauge running_, waiting_, waiting_tokens_;
  probe::Histogram e2e_, ttft_, inter_token_, tpot_, queue_, prefill_, decode_, tokenize_;
  probe::Histogram prompt_tokens_, output_tokens_, deadline_margin_;
  probe::Counter prompt_compute_, prompt_device_, preemptions_, recomputed_, generation_, expired_;
  std::array<probe::Counter, 3> discarded_;
  probe::Counter cache_queries_, cache_hits_;
  probe::Gauge cache_usage_, pages_used_, pages_cached_, pages_free_;
  std::array<probe::Counter, 3> evicted_;
  std::uint64_t evicted_pages_ = 0;  // engine thread: evicted pages of the cache at the last update
  std::array<probe::Counter, 3> steps_;
  std::array<probe::Histogram, 3> step_seconds_;
  std::array<probe::Histogram, 4> host_seconds_;
  probe::Histogram step_tokens_, batch_size_, prediction_ratio_;
  probe::Gauge last_step_;
  probe::Counter non_finite_, violations_;
  probe::Counter masks_made_, masks_late_;
  probe::Histogram mask_seconds_;
};

}  // namespace quire::engine
