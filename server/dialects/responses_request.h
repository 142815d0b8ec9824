#pragma once

// Converts bodies of OpenAI's POST /v1/responses to quire.v1.GenerateRequest.
//
//   {"instructions": "Be brief.", "input": "Hi"}  -> a chat of a system and a user message
//   reasoning, message, function_call items       -> one assistant message
//   function_call_output                          -> a message of role tool
//
// Place:      a reader of dialect_endpoints.cc. RequestTranslator checks ranges later.
// Invariants: the invariants of openai_request.h hold. Nothing is stored: `store` has no meaning,
//             and fields that need stored responses are refused.
// Threads:    pure functions.
// Source:     openai 3.54.0 (PyPI), types/responses/response_create_params.py.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/openai/openai_request.h"
#include "server/openai/request_fields.h"

namespace quire::server {

absl::StatusOr<OpenAiRequest> ParseResponsesRequest(absl::string_view body,
                                                    const OpenAiLimits& limits);

// The fields of the body (owner kResponsesBody), and of the objects in the body.
constexpr std::uint32_t kResponsesBody = 1U << 0;
const FieldTable& ResponsesFields();

}  // namespace quire::server
