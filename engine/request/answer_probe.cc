#include "engine/request/answer_probe.h"

#include <span>
#include <string>
#include <vector>

#include "engine/request/probe_labels.h"

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

std::vector<double> SizeBounds(std::int32_t max) {
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      bounds.push_back(decade * step);
      if (bounds.back() >= max) return bounds;
    }
  }
}

}  // namespace

AnswerProbe::AnswerProbe(probe::Registry* registry, const probe::Labels& model,
                         std::int32_t max_context_tokens)
    : registry_(registry) {
  for (int i = 0; i < kNumFinishReasons; ++i) {
    const auto reason = static_cast<FinishReason>(i);
    choices_[static_cast<std::size_t>(i)] =
        registry_->AddCounter("quire_choices_finished_total", "Choices of completed requests.",
                              With(model, "finish_reason", FinishReasonName(reason)));
  }
  generation_ =
      registry_->AddCounter("quire_generation_tokens_total", "Tokens sampled and kept.", model);
  auto histogram = [&](absl::string_view name, absl::string_view help,
                       std::span<const double> bounds) {
    return registry_->AddHistogram(name, help, bounds, model);
  };
  e2e_ =
      histogram("quire_request_e2e_seconds", "Time from acceptance to the last output.", kLatency);
  ttft_ = histogram("quire_request_ttft_seconds",
                    "Time from acceptance until the first token is handed to the stream.", kTtft);
  inter_token_ = histogram("quire_request_inter_token_seconds",
                           "Time between consecutive tokens of a choice, measured at the engine.",
                           kInterToken);
  tpot_ = histogram("quire_request_tpot_seconds", "Mean time between the tokens of a choice.",
                    kInterToken);
  queue_ = histogram("quire_request_queue_seconds",
                     "Time from acceptance until the request is first scheduled.", kQueue);
  prefill_ = histogram("quire_request_prefill_seconds",
                       "Time from the first scheduling of a request to its first token.", kLatency);
  decode_ = histogram("quire_request_decode_seconds",
                      "Time from the first token of a request to the last one.", kLatency);
  tokenize_ = registry_->AddHistogram("quire_request_tokenize_seconds",
                                      "Time to tokenize a prompt.", kMicros);
  prompt_tokens_ = histogram("quire_request_prompt_tokens", "Prompt tokens of completed requests.",
                             SizeBounds(max_context_tokens));
  output_tokens_ = histogram("quire_request_output_tokens", "Output tokens of completed choices.",
                             SizeBounds(max_context_tokens));
  deadline_margin_ = histogram("quire_request_deadline_margin_seconds",
                               "Time left until the deadline when a request completes.", kLatency);
}

void AnswerProbe::ToolsParsed(absl::string_view format, std::int32_t calls, std::int32_t failures) {
  const auto add = [&](absl::string_view outcome, std::int32_t count) {
    if (count == 0) return;
    registry_
        ->AddCounter("quire_tool_parse_total",
                     "Tool calls in outputs, by format, and by whether they could be parsed.",
                     {{"format", std::string(format)}, {"outcome", std::string(outcome)}})
        .Increment(count);
  };
  add("call", calls);
  add("failed", failures);
}

void AnswerProbe::ObservePhases(const PhaseTimes& times) {
  ttft_.Observe(absl::ToDoubleSeconds(times.time_to_first_token));
  prefill_.Observe(absl::ToDoubleSeconds(times.prefill));
  decode_.Observe(absl::ToDoubleSeconds(times.decode));
}

void AnswerProbe::ObserveCompleted(std::int32_t prompt_tokens, absl::Duration margin) {
  prompt_tokens_.Observe(prompt_tokens);
  if (margin != absl::InfiniteDuration()) deadline_margin_.Observe(absl::ToDoubleSeconds(margin));
}

void AnswerProbe::ObserveChoice(FinishReason reason, std::int32_t tokens, absl::Duration decode) {
  choices_[static_cast<std::size_t>(reason)].Increment();
  output_tokens_.Observe(tokens);
  if (tokens >= 2) tpot_.Observe(absl::ToDoubleSeconds(decode) / (tokens - 1));
}

}  // namespace quire::engine
