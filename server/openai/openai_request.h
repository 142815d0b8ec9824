#pragma once

// Bodies of OpenAI's completions and chat calls -> quire.v1.GenerateRequest, one for each prompt.
//
//   {"prompt": ["a", "b"], "n": 2, "logprobs": 1, "echo": true} -> two requests of two choices
//
// Place:      between the OpenAI-compatible listener and Generation; what is in range is decided
//             behind it, by RequestTranslator.
// Invariants: fields that are unknown or null are as if absent. A field of the wrong type is
//             INVALID_ARGUMENT / BAD_PARAMETER with metadata `field` as the client wrote it. Bodies
//             are read by formats/json_value.h: valid UTF-8, no key twice, within OpenAiLimits.
// Threads:    any.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "quire/v1/generation.pb.h"
#include "server/openai/field_names.h"

namespace quire::server {

struct OpenAiRequest {
  bool is_chat = false;
  std::vector<v1::GenerateRequest> prompts;  // without request id
  std::int32_t choices = 1;                  // of each prompt
  bool stream = false;
  bool include_usage = false;     // a last chunk with the counts
  bool continuous_usage = false;  // the counts so far in every chunk
  bool echo = false;              // completions: the prompt before the text
  bool logprobs = false;
  // Completions with max_tokens 0: only the prompt is asked for; one token is generated and not
  // shown.
  bool hides_output = false;
  FieldNames names;  // by which errors name what this body has
};

// limits.* of the configuration, as far as they bound the reading itself.
struct OpenAiLimits {
  std::int64_t max_json_nodes = 250000;
  int max_json_depth = 64;
  std::int32_t max_logit_bias_entries = 1024;
};

// The object that a body is. BAD_PARAMETER with metadata `field` "body".
absl::StatusOr<formats::JsonDocument> ParseBody(absl::string_view body, const OpenAiLimits& limits);

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view body,
                                                     const OpenAiLimits& limits = {});
absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view body,
                                               const OpenAiLimits& limits = {});

}  // namespace quire::server
