#pragma once

// Turns the tokens of one request into the events of its stream: text, stop strings, parsed
// reasoning and tool calls, log-probabilities, usage and timings.
//
// Place:      on an output worker, between the engine's items and the TokenStream.
// Invariants: the stream contract (docs/api.md). The joined texts and ids of a choice equal those
//             of the same request without streaming. Nothing of a choice follows its completed
//             event. Tokens after a stop string are dropped and counted.
// Threads:    one output worker.
// Lifetime:   owned by its worker from the first item of its request to the last. The tokenizer
//             outlives it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_hash.h"
#include "engine/output/output_item.h"
#include "engine/output/token_stream.h"
#include "engine/request/engine_probe.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tools/output_parser.h"

namespace quire::engine {

class OutputState {
 public:
  // `id_key` is the key of the hash that generates the ids of tool calls.
  OutputState(std::shared_ptr<const AcceptedRequest> accepted, const text::Tokenizer& tokenizer,
              const HashKey& id_key);

  void Start(const OutputItem& item);
  void AddPromptLogprobs(const OutputItem& item);
  // Returns true if a stop string matched with this token, or if the only allowed call is complete.
  // The engine must then end the choice. `clock` provides the time at which the first token is
  // handed over.
  bool AddToken(const OutputItem& item, const Clock& clock, EngineProbe& probe);
  // Called after the choice's last token, or for kChoiceEnd.
  void EndChoice(const OutputItem& item);
  // Updates the metrics for the end of the request. The caller finishes the stream.
  void EndRequest(const OutputItem& item, absl::Time now, EngineProbe& probe);
  // Returns the usage of the request. Output tokens are summed over all choices.
  Usage TotalUsage() const;
  // Returns the time from accept until the first token of any choice was handled, or 0 if there was
  // none.
  absl::Duration TimeToFirstToken() const;

 private:
  struct Choice {
    Choice(text::Detokenizer the_detokenizer, const text::StopAutomaton* stops)
        : detokenizer(std::move(the_detokenizer)), matcher(stops) {}

    text::Detokenizer detokenizer;
    text::StopMatcher matcher;
    std::unique_ptr<text::OutputParser> parser;  // null: the whole text is content
    std::int32_t num_calls = 0;
    std::int32_t num_failed = 0;  // parts that began like a call but are not valid calls
    std::int32_t reasoning_tokens = 0;
    bool is_reasoning = false;    // whether the last emitted part was reasoning
    std::int64_t characters = 0;  // code points that the detokenizer has emitted
    DeltaEvent pending;           // not written yet; the whole output without streaming
    std::int32_t tokens = 0;      // tokens of the output
    bool ended = false;           // later tokens are discarded
    std::optional<FinishReason> reason;
    std::optional<std::int32_t> stop_token;
    std::optional<std::int32_t> stop_string;  // index into StoppingParams::stop
    absl::Time first_token_time, last_token_time;
  };

  void CountToken(const OutputItem& item, const Clock& clock, EngineProbe& probe);
  void AddLogprob(Choice& choice, const OutputItem& item);
  void PushText(Choice& choice, const OutputItem& item);
  void Flush(Choice& choice);
  // Adds text that the stop matcher has released. `is_last` means that nothing follows.
  void AddText(Choice& choice, std::string text, bool is_last);
  void AddParts(Choice& choice, std::vector<text::OutputPart> parts);
  std::string CallId(const Choice& choice) const;
  void WriteDelta(Choice& choice, bool is_last);
  TokenLogprob MakeLogprob(const OutputItem::Logprob& item_logprob) const;
  Usage UsageOf(const Choice& choice) const;
  std::int32_t prompt_tokens() const {
    return accepted_->progress.prompt_tokens.load(std::memory_order_relaxed);
  }

  const std::shared_ptr<const AcceptedRequest> accepted_;
  const Request& request_;  // the request of accepted_
  const text::Tokenizer& tokenizer_;
  const OutputParams& params_;
  const HashKey& id_key_;
  std::unique_ptr<text::StopAutomaton> stops_;  // null without stop strings
  std::vector<Choice> choices_;
  std::int32_t cached_tokens_ = 0;
  absl::Time schedule_time_;
  absl::Time first_handed_over_ = absl::InfiniteFuture();
};

}  // namespace quire::engine
