#pragma once

// A message from the engine thread to an output worker. The worker processes the items of a request
// in order.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/accepted_request.h"
#include "kernels/sampling/sampling.h"
#include "text/tokenizer/decoder_state.h"

namespace quire::engine {

struct OutputItem {
  enum class Kind : std::uint8_t {
    kStarted,
    kPromptLogprobs,
    kPooled,  // the complete result of an embedding request
    kToken,   // one sampled token; with `finish`, the last of its choice
    // The engine has ended a choice, after a stop string matched or with the reason in `finish`.
    kChoiceEnd,
    kRequestEnd  // the last item of the request
  };

  // The log-probability of a prompt token or a sampled token.
  struct Logprob {
    std::int32_t token = 0;
    float logprob = 0;
    std::int32_t rank = 0;
    float processed_logprob = 0;  // for a sampled token; 0 unless requested
    std::vector<kernels::TopLogprob> top;
  };

  // The contents of the first event of the stream.
  struct Start {
    std::int32_t cached_tokens = 0;
    std::int32_t max_tokens = 0;
    bool opens_reasoning = false;       // the prompt ends inside a reasoning section
    text::DetokenizerState text_start;  // the detokenizer state at the start of each choice
    std::string prompt_text;            // empty unless echo_prompt is set
    std::vector<std::int32_t> prompt_token_ids;  // empty unless echo_prompt is set
    std::vector<std::string> unenforced;         // CompiledConstraint::unenforced()
  };

  Kind kind = Kind::kToken;
  std::shared_ptr<AcceptedRequest> request;
  absl::Time time;  // time of the step that produced the item
  std::int32_t choice = 0;

  // kStarted
  std::unique_ptr<Start> start;

  // kToken
  Logprob token;
  std::optional<FinishReason> finish;
  // kToken with finish, kChoiceEnd: counters of the choice.
  std::int32_t preemptions = 0;
  std::int32_t recomputed_tokens = 0;

  // kPromptLogprobs: positions [start_position, start_position + prompt_logprobs.size())
  std::int32_t start_position = 0;
  std::vector<Logprob> prompt_logprobs;

  std::vector<float> pooled;  // kPooled: [hidden]

  // kRequestEnd
  absl::Status status;
  bool was_accepted = true;  // false: rejected during preparation
};

}  // namespace quire::engine
