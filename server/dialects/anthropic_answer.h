#pragma once

// Writes quire.v1.GenerateResponse as the message or the server-sent events of Anthropic's POST
// /v1/messages. Also writes the errors of that endpoint.
//
//   message_start, {content_block_start, deltas, content_block_stop}..., message_delta,
//   message_stop
//
// Place:      created by dialect_endpoints.cc as an AnswerWriter.
// Invariants: a message that is not streamed has a thinking block, a text block, and one tool_use
//             block per call, in this order. Blocks without output are absent. A stream has blocks
//             in the order in which they were generated. At most one block is open.
// Threads:    one thread at a time.
// Source:     anthropic 2.14.0 (PyPI), types/message.py and types/raw_*_event.py.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_error.h"

namespace quire::server {

class AnthropicAnswer : public AnswerWriter {
 public:
  AnthropicAnswer(bool stream, OpenAiAnswerHead head);

  void Take(std::size_t prompt, const v1::GenerateResponse& message, std::string* events) override;
  void AppendEnd(std::string* events) override;
  void AppendError(const std::string& error_body, std::string* events) override;
  std::string TakeBody() override;
  std::size_t buffered_bytes() const override { return content_.size(); }

 private:
  enum class Block { kNone, kThinking, kText };

  void AddDelta(const v1::Delta& delta, std::string* events);
  void AddText(Block kind, absl::string_view text, std::string* events);
  void CloseBlock(std::string* events);
  // Append events of the block with the index `num_blocks_`. `block` and `delta` are JSON objects.
  void AppendStart(absl::string_view block, std::string* events);
  void AppendDelta(const nlohmann::ordered_json& delta, std::string* events);
  void AppendStop(std::string* events);
  void SetContent(const v1::Completed& completed);
  void Finish(const v1::Completed& completed);
  nlohmann::ordered_json Usage() const;
  // Returns stop_reason and stop_sequence.
  nlohmann::ordered_json StopMembers() const;
  // Returns the message as JSON, with the content so far.
  std::string MessageJson() const;

  const bool stream_;
  const OpenAiAnswerHead head_;
  Block open_block_ = Block::kNone;
  std::int64_t num_blocks_ = 0;  // blocks that were closed
  bool has_calls_ = false;
  std::string content_;        // JSON of the blocks; empty with a stream
  std::string stop_reason_;    // empty until the end
  std::string stop_sequence_;  // may be empty
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, output_tokens_ = 0;
};

// Writes {"type": "error", "error": {"type", "message"}, "request_id"}.
std::string AnthropicErrorBody(const ApiError& error);

}  // namespace quire::server
