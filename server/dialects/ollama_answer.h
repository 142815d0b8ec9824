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
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_error.h"

namespace quire::server {

class OllamaAnswer : public AnswerWriter {
 public:
  OllamaAnswer(const OpenAiRequest& request, const OpenAiAnswerHead& head);

  void Take(std::size_t prompt, const v1::GenerateResponse& message, std::string* events) override;
  // Appends nothing, because Take has written the last line when the choice completed.
  void AppendEnd(std::string* events) override;
  // Appends the error as the last line.
  void AppendError(const std::string& error_body, std::string* events) override;
  std::string TakeBody() override;
  std::size_t buffered_bytes() const override { return body_.size(); }

 private:
  std::string Json(const std::string& text, const std::string& thinking,
                   const std::vector<std::string>& calls, const nlohmann::ordered_json& rest) const;
  void Complete(const v1::Completed& completed, std::string* events);

  const bool is_chat_;  // false: /api/generate
  const bool stream_;
  const std::string model_, created_at_;
  std::string body_;  // the completed answer; empty with a stream
};

std::unique_ptr<AnswerWriter> MakeOllamaAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens);

// Returns {"error": "..."}.
std::string OllamaErrorBody(const ApiError& error);

}  // namespace quire::server
