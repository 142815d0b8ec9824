#pragma once

// Writes quire.v1.GenerateResponse as the response object, or the server-sent events, of OpenAI's
// POST /v1/responses.
//
//   created, in_progress, {output_item.added, deltas, output_item.done}..., completed
//
// Place:      a writer of dialect_endpoints.cc; see AnswerWriter.
// Invariants: an output that is not streamed has a reasoning item, a text item, and one item per
//             tool call, in this order. Empty items are absent, but an answer without output has an
//             empty text. A stream has items in the order in which they were generated; at most one
//             is open. `sequence_number` counts the events from 0. The last event has the whole
//             output, which is kept until then.
// Threads:    one thread at a time.
// Source:     openai 3.54.0 (PyPI), types/responses/response*.py.

#include <memory>

#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"

namespace quire::server {

std::unique_ptr<AnswerWriter> MakeResponsesAnswer(const OpenAiRequest& request,
                                                  OpenAiAnswerHead head, OpenAiTokens tokens);

}  // namespace quire::server
