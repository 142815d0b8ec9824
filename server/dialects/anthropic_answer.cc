#include "server/dialects/anthropic_answer.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/json_text.h"
#include "server/dialects/dialect_fields.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

// If the answer has tool calls, the reason is tool_use, unless a limit or a stop sequence has ended
// the answer.
absl::string_view StopReason(const v1::Completed& completed, bool has_calls) {
  switch (completed.finish_reason()) {
    case v1::FINISH_REASON_LENGTH:
      return "max_tokens";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "model_context_window_exceeded";
    case v1::FINISH_REASON_STOP_TEXT:
      return "stop_sequence";
    default:
      return has_calls ? "tool_use" : "end_turn";
  }
}

absl::string_view ErrorType(int http_status) {
  constexpr std::pair<int, absl::string_view> kTypes[] = {
      {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
      {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"},
      {504, "timeout_error"}};
  for (const auto& [status, type] : kTypes) {
    if (status == http_status) return type;
  }
  return http_status >= 500 ? "api_error" : "invalid_request_error";
}

// Returns a thinking block or a text block with this text, as JSON.
std::string TextBlock(bool is_thinking, absl::string_view text) {
  if (is_thinking) {
    return JsonText(ordered_json{{"type", "thinking"}, {"thinking", text}, {"signature", ""}});
  }
  return JsonText(ordered_json{{"type", "text"}, {"text", text}});
}

// Returns a tool_use block. `input` is the JSON text of the arguments. It is copied unchanged, so
// that long numbers keep their digits.
std::string CallBlock(const std::string& id, const std::string& name, absl::string_view input) {
  return absl::StrCat("{\"type\":\"tool_use\",\"id\":", JsonQuoted(id),
                      ",\"name\":", JsonQuoted(name), ",\"input\":", input, "}");
}

class AnthropicAnswer final : public AnswerWriter {
 public:
  AnthropicAnswer(bool stream, OpenAiAnswerHead head) : stream_(stream), head_(std::move(head)) {}

  void Take(std::size_t /*prompt*/, const v1::GenerateResponse& message,
            std::string* events) override {
    if (message.has_started()) {
      prompt_tokens_ = message.started().prompt_tokens();
      cached_tokens_ = message.started().cached_tokens();
      if (!stream_) return;
      absl::StrAppend(
          events, NamedEvent("message_start", absl::StrCat("{\"type\":\"message_start\",",
                                                           "\"message\":", MessageJson(), "}")));
    } else if (message.has_delta()) {
      AddDelta(message.delta(), events);
    } else if (message.has_completed()) {
      if (stream_) {
        CloseBlock(events);
      } else {
        SetContent(message.completed());
      }
      Finish(message.completed());
    }
  }

  void AppendEnd(std::string* events) override {
    const ordered_json event = {
        {"type", "message_delta"}, {"delta", StopMembers()}, {"usage", Usage()}};
    absl::StrAppend(events, NamedEvent("message_delta", JsonText(event)),
                    NamedEvent("message_stop", R"({"type":"message_stop"})"));
  }

  void AppendError(const std::string& error_body, std::string* events) override {
    absl::StrAppend(events, NamedEvent("error", error_body));
  }

  std::string TakeBody() override { return MessageJson(); }
  std::size_t buffered_bytes() const override { return content_.size(); }

 private:
  enum class Block { kNone, kThinking, kText };

  void AddDelta(const v1::Delta& delta, std::string* events) {
    if (!delta.reasoning_text().empty()) AddText(Block::kThinking, delta.reasoning_text(), events);
    if (!delta.text().empty()) AddText(Block::kText, delta.text(), events);
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      CloseBlock(events);
      has_calls_ = true;
      AppendStart(CallBlock(call.id(), call.name(), "{}"), events);
      AppendDelta({{"type", "input_json_delta"}, {"partial_json", call.arguments_json()}}, events);
      AppendStop(events);
    }
  }

  void AddText(Block kind, absl::string_view text, std::string* events) {
    const bool is_thinking = kind == Block::kThinking;
    if (open_block_ != kind) {
      CloseBlock(events);
      AppendStart(TextBlock(is_thinking, ""), events);
      open_block_ = kind;
    }
    AppendDelta({{"type", is_thinking ? "thinking_delta" : "text_delta"},
                 {is_thinking ? "thinking" : "text", text}},
                events);
  }

  void CloseBlock(std::string* events) {
    if (std::exchange(open_block_, Block::kNone) != Block::kNone) AppendStop(events);
  }

  // AppendStart, AppendDelta and AppendStop write the events of the block with the index
  // `num_blocks_`. `block` and `delta` are JSON objects.
  void AppendStart(absl::string_view block, std::string* events) {
    absl::StrAppend(
        events, NamedEvent("content_block_start",
                           absl::StrCat("{\"type\":\"content_block_start\",\"index\":", num_blocks_,
                                        ",\"content_block\":", block, "}")));
  }

  void AppendDelta(const ordered_json& delta, std::string* events) {
    const ordered_json event = {
        {"type", "content_block_delta"}, {"index", num_blocks_}, {"delta", delta}};
    absl::StrAppend(events, NamedEvent("content_block_delta", JsonText(event)));
  }

  void AppendStop(std::string* events) {
    const ordered_json event = {{"type", "content_block_stop"}, {"index", num_blocks_++}};
    absl::StrAppend(events, NamedEvent("content_block_stop", JsonText(event)));
  }

  void SetContent(const v1::Completed& completed) {
    std::vector<std::string> blocks;
    if (!completed.reasoning_text().empty()) {
      blocks.push_back(TextBlock(/*is_thinking=*/true, completed.reasoning_text()));
    }
    if (!completed.text().empty()) {
      blocks.push_back(TextBlock(/*is_thinking=*/false, completed.text()));
    }
    for (const v1::ToolCall& call : completed.tool_calls()) {
      has_calls_ = true;
      blocks.push_back(CallBlock(call.id(), call.name(), call.arguments_json()));
    }
    content_ = absl::StrJoin(blocks, ",");
  }

  void Finish(const v1::Completed& completed) {
    stop_reason_ = std::string(StopReason(completed, has_calls_));
    stop_sequence_ = completed.stop_text();
    output_tokens_ = completed.usage().completion_tokens();
  }

  // Anthropic's API does not count cached tokens in input_tokens.
  ordered_json Usage() const {
    return {{"input_tokens", prompt_tokens_ - cached_tokens_},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached_tokens_},
            {"output_tokens", output_tokens_}};
  }

  // Returns stop_reason and stop_sequence.
  ordered_json StopMembers() const {
    const auto text = [](const std::string& value) {
      return value.empty() ? ordered_json() : ordered_json(value);
    };
    return {{"stop_reason", text(stop_reason_)}, {"stop_sequence", text(stop_sequence_)}};
  }

  // Returns the message as JSON, with the content so far.
  std::string MessageJson() const {
    std::string json = JsonText(ordered_json{
        {"id", head_.id}, {"type", "message"}, {"role", "assistant"}, {"model", head_.model}});
    json.pop_back();
    ordered_json rest = StopMembers();
    rest["usage"] = Usage();
    absl::StrAppend(&json, ",\"content\":[", content_, "],", JsonText(rest).substr(1));
    return json;
  }

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

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnthropicAnswer(const OpenAiRequest& request,
                                                  OpenAiAnswerHead head, OpenAiTokens /*tokens*/) {
  return std::make_unique<AnthropicAnswer>(request.stream, std::move(head));
}

std::string AnthropicErrorBody(const ApiError& error) {
  return JsonText(ordered_json{
      {"type", "error"},
      {"error", {{"type", ErrorType(error.http_status)}, {"message", error.message}}},
      {"request_id", error.request_id.empty() ? ordered_json() : ordered_json(error.request_id)}});
}

}  // namespace quire::server
