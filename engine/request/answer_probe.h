#pragma once

// The metric families of answers: their lengths, their latencies and their tool calls.
//
// Place:      part of EngineProbe.
// Threads:    thread-safe. ToolsParsed locks the registry, because it may add a series; the other
//             methods are lock-free.
// Lifetime:   the registry outlives it.

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/probe.h"
#include "engine/request/request.h"

namespace quire::engine {

struct PhaseTimes {
  absl::Duration time_to_first_token, prefill, decode;
};

class AnswerProbe {
 public:
  AnswerProbe(probe::Registry* registry, const probe::Labels& model,
              std::int32_t max_context_tokens);

  void ObserveTokenize(absl::Duration time) { tokenize_.Observe(absl::ToDoubleSeconds(time)); }
  void ObserveQueue(absl::Duration time) { queue_.Observe(absl::ToDoubleSeconds(time)); }
  void ObserveInterToken(absl::Duration time) { inter_token_.Observe(absl::ToDoubleSeconds(time)); }
  void ObserveEnd(absl::Duration e2e) { e2e_.Observe(absl::ToDoubleSeconds(e2e)); }
  void ObservePhases(const PhaseTimes& times);
  void ObserveCompleted(std::int32_t prompt_tokens, absl::Duration margin);
  // Counts the calls and failures of a choice that was parsed in `format`.
  void ToolsParsed(absl::string_view format, std::int32_t calls, std::int32_t failures);
  void ObserveChoice(FinishReason reason, std::int32_t tokens, absl::Duration decode);
  void AddGenerated(std::int32_t tokens) { generation_.Increment(tokens); }

 private:
  probe::Registry* const registry_;
  std::array<probe::Counter, kNumFinishReasons> choices_;
  probe::Counter generation_;
  probe::Histogram e2e_, ttft_, inter_token_, tpot_, queue_, prefill_, decode_, tokenize_;
  probe::Histogram prompt_tokens_, output_tokens_, deadline_margin_;
};

}  // namespace quire::engine
