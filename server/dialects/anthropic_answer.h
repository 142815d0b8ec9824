#pragma once

// Writes quire.v1.GenerateResponse as the message or the server-sent events of Anthropic's POST
// /v1/messages. Also writes the errors of that endpoint.
//
//   message_start, {content_block_start, deltas, content_block_stop}..., message_delta,
//   message_stop
//
// Place:      a writer of dialect_endpoints.cc; see AnswerWriter.
// Invariants: a message that is not streamed has a thinking block, a text block, and one tool_use
//             block per call, in this order. Blocks without output are absent. A stream has blocks
//             in the order in which they were generated. At most one block is open.
// Threads:    one thread at a time.
// Source:     anthropic 2.14.0 (PyPI), types/message.py and types/raw_*_event.py.

#include <memory>
#include <string>

#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_error.h"

namespace quire::server {

std::unique_ptr<AnswerWriter> MakeAnthropicAnswer(const OpenAiRequest& request,
                                                  OpenAiAnswerHead head, OpenAiTokens tokens);

// Writes {"type": "error", "error": {"type", "message"}, "request_id"}.
std::string AnthropicErrorBody(const ApiError& error);

}  // namespace quire::server
