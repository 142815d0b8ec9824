#pragma once

// Converts bodies of OpenAI completions and chat calls to one quire.v1.GenerateRequest per prompt.
//
//   {"prompt": ["a", "b"], "n": 2, "logprobs": 1, "echo": true} -> two requests of two choices
//
// Place:      between the OpenAI-compatible listener and Generation. RequestTranslator checks
//             ranges later.
// Invariants: null fields count as absent. An unknown or refused field, or a wrong type, is
//             INVALID_ARGUMENT / BAD_PARAMETER. The error's metadata `field` is the field's name in
//             the client's body (request_fields.h). Bodies are parsed by formats/json_value.h:
//             valid UTF-8, no duplicate keys, within OpenAiLimits.
// Threads:    any.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "quire/v1/generation.pb.h"
#include "server/openai/field_names.h"
#include "server/openai/request_fields.h"

namespace quire::server {

struct OpenAiRequest {
  bool is_chat = false;
  std::vector<v1::GenerateRequest> prompts;  // without request ids
  std::int32_t choices = 1;                  // generated per prompt
  std::int32_t returned_choices = 1;         // per prompt, those with the best mean logprob
  bool stream = false;
  bool include_usage = false;     // send a last chunk with the usage
  bool continuous_usage = false;  // send the usage so far in every chunk
  bool echo = false;              // completions: return the prompt before the text
  bool logprobs = false;
  bool prompt_logprobs = false;  // return the log-probabilities of the prompt in vLLM's form
  bool token_ids = false;        // return the ids of prompt and output
  // The request has `functions` instead of tools, so a call is returned as `function_call`.
  bool uses_functions = false;
  // Set for completions with echo and max_tokens 0, which request only the prompt. One token is
  // generated but not returned.
  bool hides_output = false;
  // /v1/responses only: members of the answer that repeat fields of the request, as JSON text.
  std::string repeated_members;
  FieldNames names;  // the client's names of fields, for errors
};

// Limits of the configuration and properties of the model that apply to parsing.
struct OpenAiLimits {
  std::int64_t max_json_nodes = 250000;
  int max_json_depth = 64;
  std::int32_t max_logit_bias_entries = 1024;
  std::int32_t max_tokens = 1 << 20;  // limits.max_tokens_per_request or the context length
  bool has_chat_template = true;      // the model has a default template
  UnknownFieldHandler on_unknown_field = nullptr;  // null: unknown fields are refused
};

// Parses a body, which must be an object, and checks its fields against those of `owner`
// (CheckFields). If the body cannot be parsed, the error is BAD_PARAMETER with metadata `field`
// "body".
absl::StatusOr<formats::JsonDocument> ParseBody(absl::string_view body, const FieldTable& table,
                                                std::uint32_t owner, const OpenAiLimits& limits);

// Truncates a label to the maximum length, without splitting a character. Labels are only logged,
// so a long label is not an error.
std::string TruncateLabel(std::string text);

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view body,
                                                     const OpenAiLimits& limits = {});
absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view body,
                                               const OpenAiLimits& limits = {});

}  // namespace quire::server
