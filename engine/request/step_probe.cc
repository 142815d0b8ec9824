#include "engine/request/step_probe.h"

#include <vector>

#include "absl/strings/string_view.h"
#include "engine/request/probe_labels.h"

namespace quire::engine {
namespace {

constexpr double kMaskTimes[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                 2e-4, 5e-4, .001, .002, .005, .01,  .1};
constexpr double kStep[] = {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1};
constexpr double kPredictionRatio[] = {.5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2};

std::vector<double> PowersOfTwo(double max) {
  std::vector<double> bounds;
  for (double bound = 1; bound <= max; bound *= 2) bounds.push_back(bound);
  return bounds;
}

}  // namespace

StepProbe::StepProbe(probe::Registry* registry, const probe::Labels& model) {
  prompt_compute_ = registry->AddCounter(kPromptTokensFamily, kPromptTokensHelp,
                                         With(model, "source", "compute"));
  preemptions_ = registry->AddCounter("quire_preemptions_total", "Preempted sequences.",
                                      With(model, "mode", "recompute"));
  recomputed_ = registry->AddCounter("quire_recomputed_tokens_total",
                                     "Tokens computed again after a preemption.", model);
  constexpr absl::string_view kDiscardCauses[] = {"after_stop", "cancelled", "late_mask"};
  for (std::size_t i = 0; i < discarded_.size(); ++i) {
    discarded_[i] = registry->AddCounter("quire_discarded_tokens_total",
                                         "Sampled tokens that are not part of an answer.",
                                         With(model, "cause", kDiscardCauses[i]));
  }
  expired_ = registry->AddCounter("quire_expired_request_tokens_total",
                                  "Tokens computed for requests past their deadline.", model);
  constexpr absl::string_view kKinds[] = {"prefill", "decode", "mixed"};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const probe::Labels labels = With(model, "kind", kKinds[i]);
    steps_[i] = registry->AddCounter("quire_engine_steps_total", "Steps run.", labels);
    step_seconds_[i] =
        registry->AddHistogram("quire_engine_step_seconds", "Wall time of a step.", kStep, labels);
  }
  step_tokens_ = registry->AddHistogram("quire_engine_step_tokens", "New tokens of a step.",
                                        PowersOfTwo(16384), model);
  batch_size_ = registry->AddHistogram("quire_engine_batch_size", "Sequences of a step.",
                                       PowersOfTwo(4096), model);
  prediction_ratio_ = registry->AddHistogram("quire_engine_step_prediction_ratio",
                                             "Wall time of a step divided by its expected time.",
                                             kPredictionRatio, model);
  constexpr absl::string_view kStages[] = {"schedule", "prepare", "output"};
  for (std::size_t i = 0; i < host_seconds_.size(); ++i) {
    host_seconds_[i] =
        registry->AddHistogram("quire_engine_host_seconds", "Host time of a step by stage.",
                               kMicros, With(model, "stage", kStages[i]));
  }
  last_step_ = registry->AddGauge("quire_engine_last_step_timestamp_seconds",
                                  "Unix time at which the last step ended.", model);
  non_finite_ = registry->AddCounter("quire_engine_non_finite_total",
                                     "Requests ended by NaN or infinity in their logits.", model);
  constexpr absl::string_view kMasks = "quire_constraint_masks_total";
  constexpr absl::string_view kMasksHelp =
      "Masks computed, and rows that were not sampled because their mask was late.";
  masks_made_ = registry->AddCounter(kMasks, kMasksHelp, With(model, "result", "computed"));
  masks_late_ = registry->AddCounter(kMasks, kMasksHelp, With(model, "result", "late"));
  mask_seconds_ = registry->AddHistogram(
      "quire_constraint_mask_seconds", "Time to compute the mask of one token.", kMaskTimes, model);
  violations_ = registry->AddCounter("quire_invariant_violations_total", "Failed integrity checks.",
                                     {{"class", "engine"}});
}

void StepProbe::StepRan(const StepNumbers& step, absl::Time wall_end) {
  const auto kind = static_cast<std::size_t>(step.kind);
  steps_[kind].Increment();
  step_seconds_[kind].Observe(absl::ToDoubleSeconds(step.wall));
  step_tokens_.Observe(step.num_tokens);
  batch_size_.Observe(step.num_sequences);
  if (step.expected > absl::ZeroDuration()) {
    prediction_ratio_.Observe(absl::FDivDuration(step.wall, step.expected));
  }
  host_seconds_[0].Observe(absl::ToDoubleSeconds(step.schedule));
  host_seconds_[1].Observe(absl::ToDoubleSeconds(step.prepare));
  host_seconds_[2].Observe(absl::ToDoubleSeconds(step.output));
  last_step_.Set(absl::ToDoubleSeconds(wall_end - absl::UnixEpoch()));
}

void StepProbe::MaskMade(absl::Duration time) {
  masks_made_.Increment();
  mask_seconds_.Observe(absl::ToDoubleSeconds(time));
}

}  // namespace quire::engine
