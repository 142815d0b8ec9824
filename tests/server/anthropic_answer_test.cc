#include "server/dialects/anthropic_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/text_format.h"

namespace quire::server {
namespace {

using nlohmann::json;

v1::GenerateResponse Message(const std::string& text) {
  v1::GenerateResponse message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

std::unique_ptr<AnswerWriter> Answer(bool stream) {
  OpenAiRequest request;
  request.stream = stream;
  return MakeAnthropicAnswer(
      request, {.id = "msg_1", .model = "m", .created = 5, .system_fingerprint = ""}, {});
}

// Returns the data of all events, whose names must be their types.
std::vector<json> Events(const std::string& bytes) {
  std::vector<json> events;
  for (const absl::string_view event : absl::StrSplit(absl::StripSuffix(bytes, "\n\n"), "\n\n")) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u) << event;
    events.push_back(json::parse(absl::StripPrefix(lines.back(), "data: ")));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back()["type"].get<std::string>()));
  }
  return events;
}

std::string Error(int http_status, const std::string& request_id) {
  ApiError error;
  error.http_status = http_status;
  error.message = "m";
  error.request_id = request_id;
  return AnthropicErrorBody(error);
}

json Body(const std::string& completed) {
  const auto answer = Answer(false);
  answer->Take(0, Message("started { prompt_tokens: 3 cached_tokens: 2 }"), nullptr);
  answer->Take(0, Message("completed { " + completed + " }"), nullptr);
  return json::parse(answer->TakeBody());
}

TEST(AnthropicAnswerTest, WholeMessage) {
  EXPECT_EQ(Body(R"(finish_reason: FINISH_REASON_EOS text: "Hi" reasoning_text: "Hm"
                    tool_calls { id: "call_1" name: "f" arguments_json: "{\"a\": [1]}" }
                    usage { completion_tokens: 4 })"),
            json::parse(R"({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
    "content": [{"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": [1]}}],
    "stop_reason": "tool_use", "stop_sequence": null,
    "usage": {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
              "output_tokens": 4}})"));
}

TEST(AnthropicAnswerTest, StopReasons) {
  for (const auto& [completed, reason, sequence] : std::vector<std::array<std::string, 3>>{
           {"finish_reason: FINISH_REASON_EOS", "end_turn", ""},
           {"finish_reason: FINISH_REASON_STOP_TOKEN", "end_turn", ""},
           {"finish_reason: FINISH_REASON_LENGTH", "max_tokens", ""},
           {"finish_reason: FINISH_REASON_CONTEXT_FULL", "model_context_window_exceeded", ""},
           {"finish_reason: FINISH_REASON_STOP_TEXT stop_text: '###'", "stop_sequence", "###"}}) {
    const json body = Body(completed);
    EXPECT_EQ(body["stop_reason"], reason);
    EXPECT_EQ(body["stop_sequence"], sequence.empty() ? json() : json(sequence));
    EXPECT_EQ(body["content"], json::array());
  }
}

TEST(AnthropicAnswerTest, Events) {
  const auto answer = Answer(true);
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 cached_tokens: 2 }"), &bytes);
  answer->Take(0, Message(R"(delta { reasoning_text: "Hm" text: "H" })"), &bytes);
  answer->Take(0, Message(R"(delta { text: "i" tool_calls {
    call_index: 0 id: "call_1" name: "f" arguments_json: "{\"a\": 1.50}" } })"),
               &bytes);
  answer->Take(0,
               Message("completed { finish_reason: FINISH_REASON_EOS "
                       "usage { completion_tokens: 4 } }"),
               &bytes);
  answer->AppendEnd(&bytes);
  EXPECT_EQ(json(Events(bytes)), json::parse(R"([
    {"type": "message_start", "message": {
       "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
       "stop_reason": null, "stop_sequence": null,
       "usage": {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
                 "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0,
     "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0,
     "delta": {"type": "thinking_delta", "thinking": "Hm"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "H"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "i"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}},
    {"type": "content_block_delta", "index": 2,
     "delta": {"type": "input_json_delta", "partial_json": "{\"a\": 1.50}"}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
     "usage": {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
               "output_tokens": 4}},
    {"type": "message_stop"}])"));
}

TEST(AnthropicAnswerTest, ErrorEndsTheStream) {
  const auto answer = Answer(true);
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 }"), &bytes);
  answer->AppendError(Error(503, "1"), &bytes);
  EXPECT_EQ(Events(bytes).back(), json::parse(R"({"type": "error",
    "error": {"type": "overloaded_error", "message": "m"}, "request_id": "1"})"));
}

TEST(AnthropicAnswerTest, ErrorTypes) {
  for (const auto& [status, type] :
       std::vector<std::pair<int, std::string>>{{400, "invalid_request_error"},
                                                {401, "authentication_error"},
                                                {403, "permission_error"},
                                                {404, "not_found_error"},
                                                {413, "request_too_large"},
                                                {429, "rate_limit_error"},
                                                {500, "api_error"},
                                                {503, "overloaded_error"},
                                                {504, "timeout_error"}}) {
    const json body = json::parse(Error(status, ""));
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_TRUE(body["request_id"].is_null());
  }
}

}  // namespace
}  // namespace quire::server
