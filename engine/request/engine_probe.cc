#include "engine/request/engine_probe.h"

#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/request/arrival_counters.h"

namespace quire::engine {
namespace {

constexpr double kTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .15, .2, .25, .3,  .4,
                            .5,   .75,  1,   2.5, 5,   7.5, 10,  20, 40,  80, 160, 640, 2560};
constexpr double kInterToken[] = {.001,  .002, .003, .004, .005, .006, .008, .01,
                                  .0125, .015, .02,  .025, .03,  .04,  .05,  .075,
                                  .1,    .15,  .25,  .5,   1,    2.5,  10};
constexpr double kQueue[] = {.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120};
constexpr double kLatency[] = {.05, .1, .2, .3, .5, .8, 1,   1.5, 2,   2.5, 5,
                               10,  15, 20, 30, 40, 60, 120, 240, 480, 960};
constexpr double kMicros[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001,
                              .002, .005, .01,  .02,  .05,  .1,   1};
constexpr double kMaskTimes[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                 2e-4, 5e-4, .001, .002, .005, .01,  .1};
constexpr double kStep[] = {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1};
constexpr double kPredictionRatio[] = {.5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2};

std::vector<double> Sizes(std::int32_t max) {
  std::vector<double> borders;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      borders.push_back(decade * step);
      if (borders.back() >= max) return borders;
    }
  }
}

std::vector<double> PowersOfTwo(double max) {
  std::vector<double> borders;
  for (double border = 1; border <= max; border *= 2) borders.push_back(border);
  return borders;
}

probe::Labels With(probe::Labels labels, absl::string_view key, absl::string_view value) {
  labels.emplace_back(std::string(key), std::string(value));
  return labels;
}

std::string CodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

}  // namespace

EngineProbe::EngineProbe(probe::Registry* registry, const Options& options)
    : own_registry_(registry == nullptr ? std::make_unique<probe::Registry>() : nullptr),
      registry_(registry == nullptr ? own_registry_.get() : registry),
      model_({{"model_name", options.model_name}}) {
  AddRequestFamilies(model_, options);
  AddTokenFamilies(model_);
  AddStepFamilies(model_);
  AddCacheFamilies(model_, options);
}

void EngineProbe::AddRequestFamilies(const probe::Labels& model, const Options& options) {
  received_ = ReceivedCounter(registry_, options.model_name);
  accepted_ = registry_->AddCounter("quire_requests_accepted_total",
                                    "Requests admitted to the queue.", model);
  completed_ = registry_->AddCounter("quire_requests_completed_total",
                                     "Requests whose choices all finished, or whose prompt is "
                                     "scored or embedded.",
                                     model);
  // The other series appear with their first event (Rejected, Failed). The usual ones exist at 0
  // from the start, because a rate does not include the first event of a new series.
  RejectedCounter(registry_, Reason::kQueueFull);
  for (const auto code : {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable}) {
    registry_->AddCounter("quire_requests_failed_total",
                          "Accepted requests that ended with an error.",
                          With(model, "code", CodeName(code)));
  }
  for (int i = 0; i < kNumCancelSources; ++i) {
    const auto source = static_cast<CancelSource>(i);
    cancelled_[static_cast<std::size_t>(i)] = registry_->AddCounter(
        "quire_requests_cancelled_total", "Accepted requests that were ended early.",
        With(model, "source", CancelSourceName(source)));
  }
  for (int i = 0; i < kNumFinishReasons; ++i) {
    const auto reason = static_cast<FinishReason>(i);
    choices_[static_cast<std::size_t>(i)] =
        registry_->AddCounter("quire_choices_finished_total", "Choices of completed requests.",
                              With(model, "finish_reason", FinishReasonName(reason)));
  }
  running_ = registry_->AddGauge("quire_requests_running",
                                 "Requests that hold a place in the running batch.", model);
  waiting_ =
      registry_->AddGauge("quire_requests_waiting",
                          "Accepted requests that do not run, preempted ones included.", model);
  waiting_tokens_ = registry_->AddGauge("quire_requests_waiting_tokens",
                                        "Waiting prompt tokens that no cache holds.", model);
  auto histogram = [&](absl::string_view name, absl::string_view help,
                       std::span<const double> borders) {
    return registry_->AddHistogram(name, help, borders, model);
  };
  e2e_ = histogram("quire_request_e2e_seconds", "Accept to the last output.", kLatency);
  ttft_ = histogram("quire_request_ttft_seconds", "Accept to the first token handed over.", kTtft);
  inter_token_ = histogram("quire_request_inter_token_seconds",
                           "Gaps between tokens of a choice, at the engine.", kInterToken);
  tpot_ =
      histogram("quire_request_tpot_seconds", "Mean gap between tokens of a choice.", kInterToken);
  queue_ = histogram("quire_request_queue_seconds", "Accept to first schedule.", kQueue);
  prefill_ = histogram("quire_request_prefill_seconds", "First schedule to first token.", kLatency);
  decode_ = histogram("quire_request_decode_seconds", "First token to last token.", kLatency);
  tokenize_ =
      registry_->AddHistogram("quire_request_tokenize_seconds", "Tokenizing a prompt.", kMicros);
  prompt_tokens_ = histogram("quire_request_prompt_tokens", "Prompt tokens of completed requests.",
                             Sizes(options.max_context_tokens));
  output_tokens_ = histogram("quire_request_output_tokens", "Output tokens of completed choices.",
                             Sizes(options.max_context_tokens));
  deadline_margin_ = histogram("quire_request_deadline_margin_seconds",
                               "Time left at completion, of requests with a deadline.", kLatency);
}

void EngineProbe::AddTokenFamilies(const probe::Labels& model) {
  constexpr absl::string_view kPrompt = "quire_prompt_tokens_total";
  constexpr absl::string_view kPromptHelp = "Prompt tokens of admitted requests by origin.";
  prompt_compute_ = registry_->AddCounter(kPrompt, kPromptHelp, With(model, "source", "compute"));
  prompt_device_ = registry_->AddCounter(kPrompt, kPromptHelp, With(model, "source", "device"));
  preemptions_ =
      registry_->AddCounter("quire_preemptions_total", "Sequences that lost their pages.",
                            With(model, "mode", "recompute"));
  recomputed_ = registry_->AddCounter("quire_recomputed_tokens_total",
                                      "Tokens computed again after a preemption.", model);
  generation_ =
      registry_->AddCounter("quire_generation_tokens_total", "Tokens sampled and kept.", model);
  constexpr absl::string_view kDiscarded = "quire_discarded_tokens_total";
  constexpr absl::string_view kDiscardedHelp = "Tokens sampled that are part of no answer.";
  discarded_[0] =
      registry_->AddCounter(kDiscarded, kDiscardedHelp, With(model, "cause", "after_stop"));
  discarded_[1] =
      registry_->AddCounter(kDiscarded, kDiscardedHelp, With(model, "cause", "cancelled"));
  discarded_[2] =
      registry_->AddCounter(kDiscarded, kDiscardedHelp, With(model, "cause", "late_mask"));
  expired_ = registry_->AddCounter("quire_expired_request_tokens_total",
                                   "Tokens computed for requests past their deadline.", model);
}

void EngineProbe::AddStepFamilies(const probe::Labels& model) {
  constexpr absl::string_view kKinds[] = {"prefill", "decode", "mixed"};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const probe::Labels labels = With(model, "kind", kKinds[i]);
    steps_[i] = registry_->AddCounter("quire_engine_steps_total", "Steps run.", labels);
    step_seconds_[i] =
        registry_->AddHistogram("quire_engine_step_seconds", "Wall time of a step.", kStep, labels);
  }
  step_tokens_ = registry_->AddHistogram("quire_engine_step_tokens", "New tokens of a step.",
                                         PowersOfTwo(16384), model);
  batch_size_ = registry_->AddHistogram("quire_engine_batch_size", "Sequences of a step.",
                                        PowersOfTwo(4096), model);
  prediction_ratio_ = registry_->AddHistogram("quire_engine_step_prediction_ratio",
                                              "Wall time of a step over the expected one.",
                                              kPredictionRatio, model);
  constexpr absl::string_view kStages[] = {"schedule", "prepare", "sample", "output"};
  for (const std::size_t i : {0U, 1U, 3U}) {
    host_seconds_[i] =
        registry_->AddHistogram("quire_engine_host_seconds", "Host time of a step by stage.",
                                kMicros, With(model, "stage", kStages[i]));
  }
  last_step_ = registry_->AddGauge("quire_engine_last_step_timestamp_seconds",
                                   "When the last step ended, Unix time.", model);
  non_finite_ = registry_->AddCounter("quire_engine_non_finite_total",
                                      "Requests ended by NaN or infinity in their logits.", model);
  constexpr absl::string_view kMasks = "quire_constraint_masks_total";
  constexpr absl::string_view kMasksHelp =
      "Masks that were made, and steps that left a row out for want of one.";
  masks_made_ = registry_->AddCounter(kMasks, kMasksHelp, With(model, "result", "computed"));
  masks_late_ = registry_->AddCounter(kMasks, kMasksHelp, With(model, "result", "late"));
  mask_seconds_ = registry_->AddHistogram("quire_constraint_mask_seconds",
                                          "Time to make the mask of one token.", kMaskTimes, model);
  violations_ = registry_->AddCounter("quire_invariant_violations_total",
                                      "Failed integrity checks.", {{"class", "engine"}});
}

void EngineProbe::AddCacheFamilies(const probe::Labels& model, const Options& options) {
  cache_queries_ = registry_->AddCounter("quire_prefix_cache_queries_tokens_total",
                                         "Prompt tokens looked up in the prefix cache.", model);
  cache_hits_ = registry_->AddCounter("quire_prefix_cache_hits_tokens_total",
                                      "Prompt tokens found in the prefix cache.", model);
  cache_usage_ =
      registry_->AddGauge("quire_kv_cache_usage_ratio", "Used pages over all pages.", model);
  constexpr absl::string_view kPages = "quire_kv_cache_pages";
  constexpr absl::string_view kPagesHelp = "Pages by state, the null page not counted.";
  pages_used_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "used"));
  pages_cached_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "cached"));
  pages_free_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "free"));
  pages_free_.Set(options.num_pages);
  constexpr absl::string_view kCauses[] = {"allocation", "flush", "invalidate"};
  for (std::size_t i = 0; i < evicted_.size(); ++i) {
    evicted_[i] = registry_->AddCounter("quire_kv_cache_evicted_pages_total",
                                        "Findable pages that were given up.",
                                        With(model, "cause", kCauses[i]));
  }
  probe::Labels info = With(model, "block_size", absl::StrCat(options.page_size));
  info = With(info, "num_gpu_blocks", absl::StrCat(options.num_pages));
  registry_
      ->AddGauge("quire_kv_cache_info", "Page size in tokens and number of pages.",
                 With(info, "dtype", options.kv_dtype))
      .Set(1);
}

void EngineProbe::Rejected(Reason reason) {
  RejectedCounter(registry_, reason).Increment();
}

void EngineProbe::ToolsParsed(absl::string_view format, std::int32_t calls, std::int32_t failures) {
  const auto add = [&](absl::string_view outcome, std::int32_t count) {
    if (count == 0) return;
    registry_
        ->AddCounter("quire_tool_parse_total",
                     "Calls of tools that answers hold, by what they are.",
                     {{"format", std::string(format)}, {"outcome", std::string(outcome)}})
        .Increment(static_cast<std::uint64_t>(count));
  };
  add("call", calls);
  add("failed", failures);
}

void EngineProbe::Accepted() {
  const probe::Registry::Update update(registry_);
  accepted_.Increment();
  waiting_.Add(1);
}

void EngineProbe::MoveToRunning() {
  const probe::Registry::Update update(registry_);
  waiting_.Add(-1);
  running_.Add(1);
}

void EngineProbe::MoveToWaiting() {
  const probe::Registry::Update update(registry_);
  running_.Add(-1);
  waiting_.Add(1);
}

void EngineProbe::Completed(bool was_running) {
  const probe::Registry::Update update(registry_);
  completed_.Increment();
  GaugeOf(was_running).Add(-1);
}

void EngineProbe::Failed(bool was_running, absl::StatusCode code) {
  probe::Counter failed = registry_->AddCounter("quire_requests_failed_total",
                                                "Accepted requests that ended with an error.",
                                                With(model_, "code", CodeName(code)));
  const probe::Registry::Update update(registry_);
  failed.Increment();
  GaugeOf(was_running).Add(-1);
}

void EngineProbe::Cancelled(bool was_running, CancelSource source) {
  const probe::Registry::Update update(registry_);
  cancelled_[static_cast<std::size_t>(source)].Increment();
  GaugeOf(was_running).Add(-1);
}

void EngineProbe::CancelledInPreparation(CancelSource source) {
  const probe::Registry::Update update(registry_);
  accepted_.Increment();
  cancelled_[static_cast<std::size_t>(source)].Increment();
}

void EngineProbe::ObservePhases(const PhaseTimes& times) {
  ttft_.Observe(Seconds(times.time_to_first_token));
  prefill_.Observe(Seconds(times.prefill));
  decode_.Observe(Seconds(times.decode));
}

void EngineProbe::ObserveCompleted(std::int32_t prompt_tokens, absl::Duration margin) {
  prompt_tokens_.Observe(prompt_tokens);
  if (margin != absl::InfiniteDuration()) deadline_margin_.Observe(Seconds(margin));
}

void EngineProbe::ObserveChoice(FinishReason reason, std::int32_t tokens, absl::Duration decode) {
  choices_[static_cast<std::size_t>(reason)].Increment();
  output_tokens_.Observe(tokens);
  if (tokens >= 2) tpot_.Observe(Seconds(decode) / (tokens - 1));
}

void EngineProbe::PrefixLookup(std::int32_t prompt_tokens, std::int32_t cached_tokens) {
  const probe::Registry::Update update(registry_);
  cache_queries_.Increment(prompt_tokens);
  cache_hits_.Increment(cached_tokens);
  prompt_device_.Increment(cached_tokens);
}

void EngineProbe::StepRan(const StepNumbers& step, absl::Time wall_end) {
  const auto kind = static_cast<std::size_t>(step.kind);
  steps_[kind].Increment();
  step_seconds_[kind].Observe(Seconds(step.wall));
  step_tokens_.Observe(step.num_tokens);
  batch_size_.Observe(step.num_sequences);
  if (step.expected > absl::ZeroDuration()) {
    prediction_ratio_.Observe(absl::FDivDuration(step.wall, step.expected));
  }
  host_seconds_[0].Observe(Seconds(step.schedule));
  host_seconds_[1].Observe(Seconds(step.prepare));
  host_seconds_[3].Observe(Seconds(step.output));
  last_step_.Set(absl::ToDoubleSeconds(wall_end - absl::UnixEpoch()));
}

void EngineProbe::ShowCache(const cache::CacheStats& stats, EvictionCause since_last) {
  const probe::Registry::Update update(registry_);
  pages_used_.Set(stats.used_pages);
  pages_cached_.Set(stats.cached_pages);
  pages_free_.Set(stats.free_pages);
  cache_usage_.Set(
      stats.usable_pages == 0 ? 0 : static_cast<double>(stats.used_pages) / stats.usable_pages);
  evicted_[static_cast<std::size_t>(since_last)].Increment(
      static_cast<double>(stats.evicted_pages - evicted_pages_));
  evicted_pages_ = stats.evicted_pages;
}

}  // namespace quire::engine
