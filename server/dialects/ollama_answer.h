#pragma once

// Writes answers of Ollama's /api/generate and /api/chat: one JSON object, or one per line of a
// stream. The last line has the fields `done` and `done_reason`, token counts, and durations in
// nanoseconds.
//
// Place:      created by the make_writer functions of GenerationEndpoint.
// Invariants: prompt_eval_duration is the time from the first scheduling to the first token.
//             eval_duration is the time from the first token to the last one. total_duration is
//             their sum plus the time in the queue. load_duration is 0. Tool calls are sent as
//             whole calls.
// Threads:    one thread at a time.
// Source:     api/types.go of Ollama at 017eb8ae.

#include <memory>
#include <string>

#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_error.h"

namespace quire::server {

std::unique_ptr<AnswerWriter> MakeOllamaAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens);

// Returns {"error": "..."}.
std::string OllamaErrorBody(const ApiError& error);

}  // namespace quire::server
