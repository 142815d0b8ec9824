#include "engine/scheduler/step_time_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::engine {
namespace {

// Units that scale the terms to about one, which keeps the fit well conditioned.
constexpr double kRowUnit = 8;
constexpr double kKeyUnit = 8192;
constexpr double kTokenUnit = 256;
constexpr double kPairUnit = 256.0 * 1024;

// Factor by which the weight of a step decays with each later step of its kind. Steps with prompts
// are rarer and vary more.
constexpr double kKeepDecodes = 0.98;
constexpr double kKeepPrompts = 0.95;

// After kMinTrustedSteps steps of a kind, a measured time is clamped to between 1 / kOutlier and
// kOutlier times the expected time. If the clamped time differs from the expected time by more than
// a factor of kSurprise, the machine may have become slower or faster. The weights of earlier steps
// then decay by kKeepSurprised, because fast steps weigh more and would dominate the fit.
constexpr double kOutlier = 3;
constexpr double kSurprise = 1.5;
constexpr double kKeepSurprised = 0.7;
constexpr std::uint64_t kMinTrustedSteps = 4;

// If a step reads weights for longer than it computes, a few prompt tokens cost nothing. The fit
// would then predict that any number of them costs nothing. So no chunk is sized for more than
// kMaxSpeedUp times the speed of the fastest step. That speed decays by kKeepFastest with each
// step.
constexpr double kMaxSpeedUp = 2;
constexpr double kKeepFastest = 0.99;

// Time that the data leave unexplained is attributed to the prompt tokens first, which makes chunks
// smaller rather than larger, and then to the constant. These two terms are the first ones in
// kOrder and have the smallest ridges.
constexpr std::array<std::size_t, 5> kOrder = {3, 0, 1, 2, 4};
constexpr std::array<double, 5> kRidge = {1e-4, 1e-3, 1e-3, 1e-6, 1e-3};
constexpr int kSweeps = 32;
// Number of sweeps after a step without prompts. Such steps are frequent, and the next fit
// continues from the coefficients of this one.
constexpr int kSweepsWithoutPrompts = 8;
constexpr double kMinChange = 1e-4;  // relative change of a coefficient

constexpr double kMinSeconds = 1e-6;
constexpr double kMaxSeconds = 1e4;

}  // namespace

StepTimeModel::Terms StepTimeModel::TermsOf(const StepWork& work) {
  return {1, work.decode_rows / kRowUnit, work.decode_keys / kKeyUnit,
          work.prompt_tokens / kTokenUnit, work.prompt_pairs / kPairUnit};
}

double StepTimeModel::Seconds(const Terms& terms) const {
  double sum = 0;
  for (std::size_t i = 0; i < kTerms; ++i) sum += coefficients_[i] * terms[i];
  return std::min(sum, kMaxSeconds);
}

absl::Duration StepTimeModel::Predict(const StepWork& work) const {
  return absl::Seconds(Seconds(TermsOf(work)));
}

bool StepTimeModel::CanPredict(const StepWork& work) const {
  return (work.prompt_tokens > 0 ? prompts_ : decodes_).steps >= kMinTrustedSteps;
}

void StepTimeModel::Learn(const StepWork& work, absl::Duration time) {
  if (time <= absl::ZeroDuration()) return;
  const bool has_prompt = work.prompt_tokens > 0;
  History& history = has_prompt ? prompts_ : decodes_;
  const Terms terms = TermsOf(work);
  double keep = has_prompt ? kKeepPrompts : kKeepDecodes;
  double seconds = std::clamp(absl::ToDoubleSeconds(time), kMinSeconds, kMaxSeconds);
  if (history.steps >= kMinTrustedSteps) {
    const double expected = std::max(Seconds(terms), kMinSeconds);
    seconds = std::clamp(seconds, expected / kOutlier, expected * kOutlier);
    const double ratio = seconds / expected;
    if (ratio > kSurprise || ratio < 1 / kSurprise) keep = kKeepSurprised;
  }
  if (has_prompt)
    max_prompt_rate_ = std::max(max_prompt_rate_ * kKeepFastest, work.prompt_tokens / seconds);
  // Both sides are divided by the time, so every step counts by its relative error.
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      double& product = history.products[i][j];
      product = keep * product + terms[i] * terms[j] / (seconds * seconds);
    }
    history.targets[i] = keep * history.targets[i] + terms[i] / seconds;
  }
  ++history.steps;
  Fit(has_prompt ? kSweeps : kSweepsWithoutPrompts);
}

// Coordinate descent from the last fit: each coefficient in turn is set to its best non-negative
// value, given the others.
void StepTimeModel::Fit(int max_sweeps) {
  std::array<Terms, kTerms> products;
  Terms targets, inverses;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      products[i][j] = decodes_.products[i][j] + prompts_.products[i][j];
    }
    targets[i] = decodes_.targets[i] + prompts_.targets[i];
    const double scale = products[i][i] * (1 + kRidge[i]);
    inverses[i] = scale > std::numeric_limits<double>::min() ? 1 / scale : 0;  // 0: never seen
  }
  bool has_changed = true;
  for (int sweep = 0; has_changed && sweep < max_sweeps; ++sweep) {
    has_changed = false;
    for (const std::size_t i : kOrder) {
      if (inverses[i] == 0) continue;
      double rest = targets[i];
      for (std::size_t j = 0; j < kTerms; ++j) {
        if (j != i) rest -= products[i][j] * coefficients_[j];
      }
      const double best = std::clamp(rest * inverses[i], 0.0, kMaxSeconds);
      has_changed |= std::abs(best - coefficients_[i]) > kMinChange * best;
      coefficients_[i] = best;
    }
  }
}

std::uint32_t StepTimeModel::PromptTokensWithin(absl::Duration time, std::uint32_t stored) const {
  const double seconds = absl::ToDoubleSeconds(time);
  if (prompts_.steps == 0 || !(seconds > 0)) return 0;
  // Solves pair / 2 * q^2 + (token + pair * (stored + 1/2)) * q = seconds for q, in the form that
  // is also valid for pair = 0.
  const double pair = coefficients_[4] / kPairUnit;
  const double slope = coefficients_[3] / kTokenUnit + pair * (stored + 0.5);
  const double fitted = 2 * seconds / (slope + std::sqrt(slope * slope + 2 * pair * seconds));
  const double tokens = std::min(fitted, kMaxSpeedUp * max_prompt_rate_ * seconds);
  constexpr double kMax = 1 << 20;
  return static_cast<std::uint32_t>(tokens < kMax ? tokens : kMax);
}

}  // namespace quire::engine
