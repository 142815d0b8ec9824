#pragma once

// The metric families of steps: their times, the tokens that they compute, and their masks.
//
// Place:      part of EngineProbe.
// Threads:    thread-safe; lock-free.
// Lifetime:   the registry outlives it.

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "base/probe.h"

namespace quire::engine {

enum class DiscardCause : std::uint8_t { kAfterStop, kCancelled, kLateMask };
enum class StepKind : std::uint8_t { kPrefill, kDecode, kMixed };

struct StepNumbers {
  StepKind kind = StepKind::kDecode;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_sequences = 0;
  absl::Duration wall;
  // Host times of the stages. If the step ran alone, the rest of `wall` is the runner's time.
  absl::Duration schedule, prepare, output;
  absl::Duration expected;  // expected value of wall; zero: not known
};

class StepProbe {
 public:
  StepProbe(probe::Registry* registry, const probe::Labels& model);

  // `wall_end` is the wall-clock time at which the step ended.
  void StepRan(const StepNumbers& step, absl::Time wall_end);
  void PromptComputed(std::uint32_t tokens) { prompt_compute_.Increment(tokens); }
  void Recomputed(std::uint32_t tokens) { recomputed_.Increment(tokens); }
  void Preempted() { preemptions_.Increment(); }
  void AddDiscarded(DiscardCause cause, std::int32_t tokens) {
    discarded_[static_cast<std::size_t>(cause)].Increment(tokens);
  }
  void ExpiredTokens(std::uint32_t tokens) { expired_.Increment(tokens); }
  // `time` is the time that it took to compute the mask.
  void MaskMade(absl::Duration time);
  // Counts a row that was not sampled because its mask was not ready in time.
  void MaskLate() { masks_late_.Increment(); }
  void NonFinite() { non_finite_.Increment(); }
  void InvariantViolated() { violations_.Increment(); }

  std::int64_t preemptions() const { return static_cast<std::int64_t>(preemptions_.value()); }

 private:
  probe::Counter prompt_compute_, preemptions_, recomputed_, expired_;
  std::array<probe::Counter, 3> discarded_;
  std::array<probe::Counter, 3> steps_;
  std::array<probe::Histogram, 3> step_seconds_;
  std::array<probe::Histogram, 3> host_seconds_;
  probe::Histogram step_tokens_, batch_size_, prediction_ratio_;
  probe::Gauge last_step_;
  probe::Counter non_finite_, violations_;
  probe::Counter masks_made_, masks_late_;
  probe::Histogram mask_seconds_;
};

}  // namespace quire::engine
