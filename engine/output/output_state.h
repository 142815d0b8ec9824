#pragma once

// Turns the tokens of one request into the events of its stream: text, stop strings,
// log-probabilities, usage and times.
//
// Place:      on an output worker, between the engine's items and the TokenStream.
// Invariants: the stream contract (docs/api.md, section 5): joined texts and ids of a choice are
//             those of the same request without streaming; nothing of a choice follows its
//             completed event; tokens behind a stop string are dropped and counted.
// Threads:    one output worker.
// Lifetime:   in its worker, from the first item of its request to the last; the tokenizer outlives
//             it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/output/output_item.h"
#include "engine/output/token_stream.h"
#include "engine/request/engine_probe.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace quire::engine {

class OutputState {
 public:
  OutputState(std::shared_ptr<const AcceptedRequest> accepted, const text::Tokenizer& tokenizer);

  void Start(const OutputItem& item);
  void AddPromptLogprobs(const OutputItem& item);
  // True when a stop string matched with this token: the engine must end the choice. `handed_over`
  // is when the token reached the stream's side.
  bool AddToken(const OutputItem& item, absl::Time handed_over, EngineProbe& probe);
  // After the choice's last token, or kChoiceEnd.
  void EndChoice(const OutputItem& item);
  // Counts the request's end and returns what it has used; the stream is left to the caller.
  Usage EndRequest(const OutputItem& item, absl::Time now, EngineProbe& probe);

 private:
  struct Choice {
    Choice(const text::Tokenizer& tokenizer, bool skip_special, const text::StopAutomaton* stops)
        : detokenizer(tokenizer, skip_special), matcher(stops) {}

    text::Detokenizer detokenizer;
    text::StopMatcher matcher;
    DeltaEvent pending;       // not written yet; the whole output without streaming
    std::int32_t tokens = 0;  // kept
    bool ended = false;       // no token counts any more
    std::optional<FinishReason> reason;
    std::optional<std::int32_t> stop_token;
    std::optional<std::int32_t> stop_string;  // index
    absl::Time first_token_time, last_token_time;
    Timings timings;
  };

  void PushText(Choice& choice, const OutputItem& item);
  void Flush(Choice& choice);
  void WriteDelta(Choice& choice, bool is_last);
  TokenLogprob MakeLogprob(const OutputItem::PromptLogprob& prompt_logprob) const;
  Usage UsageOf(const Choice& choice) const;
  std::int32_t prompt_tokens() const {
    return accepted_->progress.prompt_tokens.load(std::memory_order_relaxed);
  }

  const std::shared_ptr<const AcceptedRequest> accepted_;
  const Request& request_;  // of accepted_
  const text::Tokenizer& tokenizer_;
  const OutputParams& params_;
  std::unique_ptr<text::StopAutomaton> stops_;  // null without stop strings
  std::vector<Choice> choices_;
  std::int32_t cached_tokens_ = 0;
  absl::Time schedule_time_;
  absl::Time first_handed_over_ = absl::InfiniteFuture();
};

}  // namespace quire::engine
