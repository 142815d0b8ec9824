#pragma once

// Converts bodies of Anthropic's POST /v1/messages to quire.v1.GenerateRequest.
//
//   {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}
//                               -> a chat of a system and a user message
//   thinking, text and tool_use blocks   -> one assistant message
//   tool_result blocks                   -> messages of role tool
//
// Place:      a reader of dialect_endpoints.cc. RequestTranslator checks ranges later.
// Invariants: the invariants of openai_request.h hold. As in Anthropic's API, consecutive messages
//             of one role become one message. If the last message is the assistant's, the model
//             continues it.
// Threads:    pure functions.
// Source:     anthropic 2.14.0 (PyPI), types/message_create_params.py.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/openai/evaluation_bodies.h"
#include "server/openai/openai_request.h"
#include "server/openai/request_fields.h"

namespace quire::server {

absl::StatusOr<OpenAiRequest> ParseAnthropicRequest(absl::string_view body,
                                                    const OpenAiLimits& limits);

// Reads a body of /v1/messages/count_tokens, which may lack max_tokens, and counts its tokens.
absl::StatusOr<EvaluationPlan> ReadAnthropicTokenCount(const EvaluationBodyContext& context,
                                                       absl::string_view bytes);

// The fields of the body (owner kAnthropicBody), and of the objects in the body.
constexpr std::uint32_t kAnthropicBody = 1U << 0;
const FieldTable& AnthropicFields();

}  // namespace quire::server
