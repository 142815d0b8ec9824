#pragma once

// How long a step takes, learned from the steps that ran. It decides how many prompt tokens join a
// step, never what is computed.
//
//   t(step) = a_0 + a_r * decode rows + a_k * tokens they look back on
//                 + a_t * prompt tokens + a_h * sum over prefill tokens of q * (h + (q + 1) / 2)
//
// for q tokens behind h that are stored already. The fit minimises the squared relative error with
// coefficients that are not negative. Steps with and without prompt tokens are forgotten
// separately, each by the coming of its own kind, so that an hour of decoding does not wipe out
// what prompts cost. A time far from what was expected is cut at a factor of it, and makes earlier
// ones count less.
//
// xLLM's time predictor fits a quadratic in the prompt's length and an affine decode term and
// inverts it for chunks (github.com/jd-opensource/xllm, core/scheduler/profile): the idea, not the
// code.
//
// Place:      in Scheduler; fed by EngineCore after every step.
// Invariants: coefficients, predictions and token counts are finite and not negative. A function of
//             its calls. Allocates nothing.
// Threads:    one.
// Lifetime:   a value.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

// What a step has to do, as far as its time depends on it.
struct StepWork {
  double decode_rows = 0;
  double decode_keys = 0;  // tokens stored before them
  double prompt_tokens = 0;
  double prompt_pairs = 0;  // of a token and one that it looks at

  void AddDecode(std::uint32_t stored) {
    decode_rows += 1;
    decode_keys += stored;
  }
  void AddPrompt(std::uint32_t stored, std::uint32_t num_tokens) {
    prompt_tokens += num_tokens;
    prompt_pairs += num_tokens * (stored + (num_tokens + 1) / 2.0);
  }
};

class StepTimeModel {
 public:
  // A step of `work` took `time`. Times that are not positive say nothing.
  void Learn(const StepWork& work, absl::Duration time);

  // Zero before the first step.
  absl::Duration Predict(const StepWork& work) const;
  // Whether there were enough steps of the kind of `work` to hold a prediction against the truth.
  bool Knows(const StepWork& work) const;

  // The most prompt tokens of a sequence with `stored` tokens whose share of a step's time is
  // within `time`, and not more than at twice the speed of the fastest step. 0 while no step with
  // prompt tokens has been seen, and for times below zero.
  std::uint32_t PromptTokensWithin(absl::Duration time, std::uint32_t stored) const;

 private:
  static constexpr std::size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;

  // Sums over the steps of one kind, with falling weights.
  struct History {
    std::array<Terms, kTerms> products{};
    Terms targets{};
    std::uint64_t steps = 0;
  };

  static Terms TermsOf(const StepWork& work);
  double Seconds(const Terms& terms) const;
  void Fit(int max_sweeps);

  History decodes_, prompts_;
  Terms coefficients_{};  // seconds per unit of kUnits
  double fastest_ = 0;    // prompt tokens per second of a whole step; forgotten slowly
};

}  // namespace quire::engine
