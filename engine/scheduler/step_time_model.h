#pragma once

// Predicts the time of a step from the steps that ran. The prediction limits the prompt tokens of a
// step and does not affect the results.
//
//   t(step) = a_0 + a_r * decode rows + a_k * tokens stored before them
//                 + a_t * prompt tokens + a_h * sum over chunks of q * (h + (q + 1) / 2)
//
// for chunks of q tokens after h stored tokens. The fit minimizes the squared relative error with
// non-negative coefficients. Steps with and without prompt tokens are two kinds. The weight of a
// step decays only with new steps of its own kind, so an hour of decoding does not erase the cost
// of prompts. A measured time that is far from the expected time is clamped to a fixed multiple or
// fraction of the expected time. Such a step also reduces the weight of earlier steps.
//
// The idea, but no code, is from xLLM's time predictor (github.com/jd-opensource/xllm,
// core/scheduler/profile). That predictor fits a quadratic in the prompt's length and an affine
// decode term, and inverts them to find the length of a chunk.
//
// Place:      part of Scheduler; StepPipeline reports every step to it.
// Invariants: coefficients, predictions and token counts are finite and not negative. Its results
//             depend only on its calls. Allocates nothing.
// Threads:    one thread.
// Lifetime:   a value.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

// The quantities of a step on which its time depends.
struct StepWork {
  double decode_rows = 0;
  double decode_keys = 0;  // tokens stored before these rows
  double prompt_tokens = 0;
  double prompt_pairs = 0;  // pairs of a prompt token and a token it attends to

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
  // Records that a step of `work` took `time`. Times that are not positive are ignored.
  void Learn(const StepWork& work, absl::Duration time);

  // Returns zero before the first step.
  absl::Duration Predict(const StepWork& work) const;
  // Returns whether there were enough steps of the kind of `work` for predictions to be useful.
  bool CanPredict(const StepWork& work) const;
  // Returns Predict, or zero if CanPredict is false.
  absl::Duration Expect(const StepWork& work) const {
    return CanPredict(work) ? Predict(work) : absl::ZeroDuration();
  }

  // Returns the maximum size of a prompt chunk that adds at most `time` to a step. The chunk
  // follows `stored` tokens of its sequence. The result never assumes more than twice the speed of
  // the fastest step. Returns 0 before the first step with prompt tokens, and for negative times.
  std::uint32_t PromptTokensWithin(absl::Duration time, std::uint32_t stored) const;

 private:
  static constexpr std::size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;

  // Sums over the steps of one kind, with decaying weights.
  struct History {
    std::array<Terms, kTerms> products{};
    Terms targets{};
    std::uint64_t steps = 0;
  };

  static Terms TermsOf(const StepWork& work);
  double Seconds(const Terms& terms) const;
  void Fit(int max_sweeps);

  History decodes_, prompts_;
  Terms coefficients_{};        // seconds per unit of each term
  double max_prompt_rate_ = 0;  // highest prompt tokens per second of a whole step; decays slowly
};

}  // namespace quire::engine
