#include "server/dialects/responses_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/text_format.h"
#include "server/dialects/responses_request.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

using nlohmann::json;

v1::GenerateResponse Message(const std::string& text) {
  v1::GenerateResponse message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

std::unique_ptr<AnswerWriter> Answer(const std::string& options) {
  auto parsed = ParseResponsesRequest(absl::StrCat("{\"input\": \"a\"", options, "}"), {});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return MakeResponsesAnswer(
      *parsed, {.id = "resp_1", .model = "m", .created = 5, .system_fingerprint = ""}, {});
}

// Returns the data of all events, whose names must be their types and whose numbers must count.
std::vector<json> Events(const std::string& bytes) {
  std::vector<json> events;
  for (const absl::string_view event : absl::StrSplit(absl::StripSuffix(bytes, "\n\n"), "\n\n")) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u) << event;
    const json data = json::parse(absl::StripPrefix(lines.back(), "data: "));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", data["type"].get<std::string>()));
    EXPECT_EQ(data["sequence_number"], events.size());
    events.push_back(data);
  }
  return events;
}

std::vector<std::string> Types(const std::vector<json>& events) {
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"]);
  return types;
}

TEST(ResponsesAnswerTest, WholeResponse) {
  const auto answer = Answer(R"(, "metadata": {"k": "v"}, "max_output_tokens": 9)");
  answer->Take(0, Message("started { prompt_tokens: 3 cached_tokens: 2 }"), nullptr);
  answer->Take(0, Message(R"(completed {
    finish_reason: FINISH_REASON_EOS text: "Hi" reasoning_text: "Hm"
    tool_calls { id: "call_1" name: "f" arguments_json: "{\"a\": 1}" }
    usage { completion_tokens: 4 reasoning_tokens: 1 } })"),
               nullptr);
  EXPECT_GT(answer->buffered_bytes(), 100u);
  EXPECT_EQ(json::parse(answer->TakeBody()), json::parse(R"({
    "id": "resp_1", "object": "response", "created_at": 5, "status": "completed",
    "background": false, "error": null, "incomplete_details": null, "instructions": null,
    "max_output_tokens": 9, "metadata": {"k": "v"}, "model": "m", "parallel_tool_calls": true,
    "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "store": false,
    "temperature": null, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_logprobs": 0, "top_p": null, "truncation": "disabled", "user": null,
    "usage": {"input_tokens": 3,
              "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
              "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1},
              "total_tokens": 7},
    "output": [
      {"type": "reasoning", "id": "rs_1_0", "summary": [], "status": "completed",
       "content": [{"type": "reasoning_text", "text": "Hm"}]},
      {"type": "message", "id": "msg_1_1", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hi"}]},
      {"type": "function_call", "id": "fc_1_2", "call_id": "call_1", "name": "f",
       "arguments": "{\"a\": 1}", "status": "completed"}]})"));
}

TEST(ResponsesAnswerTest, EventsOfReasoningTextAndCall) {
  const auto answer = Answer(R"(, "stream": true)");
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 }"), &bytes);
  answer->Take(0, Message(R"(delta { reasoning_text: "H" })"), &bytes);
  answer->Take(0, Message(R"(delta { reasoning_text: "m" text: "H" })"), &bytes);
  answer->Take(0, Message(R"(delta { text: "i" tool_calls {
    call_index: 0 id: "call_1" name: "f" arguments_json: "{}" } })"),
               &bytes);
  answer->Take(0,
               Message("completed { finish_reason: FINISH_REASON_EOS "
                       "usage { completion_tokens: 4 } }"),
               &bytes);
  answer->AppendEnd(&bytes);
  EXPECT_EQ(answer->buffered_bytes(), 0u);
  const std::vector<json> events = Events(bytes);
  EXPECT_EQ(Types(events), (std::vector<std::string>{"response.created",
                                                     "response.in_progress",
                                                     "response.output_item.added",
                                                     "response.content_part.added",
                                                     "response.reasoning_text.delta",
                                                     "response.reasoning_text.delta",
                                                     "response.reasoning_text.done",
                                                     "response.content_part.done",
                                                     "response.output_item.done",
                                                     "response.output_item.added",
                                                     "response.content_part.added",
                                                     "response.output_text.delta",
                                                     "response.output_text.delta",
                                                     "response.output_text.done",
                                                     "response.content_part.done",
                                                     "response.output_item.done",
                                                     "response.output_item.added",
                                                     "response.function_call_arguments.delta",
                                                     "response.function_call_arguments.done",
                                                     "response.output_item.done",
                                                     "response.completed"}));
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], json::array());
  EXPECT_EQ(events[9], json::parse(R"({"type": "response.output_item.added", "sequence_number": 9,
    "output_index": 1, "item": {"type": "message", "id": "msg_1_1", "status": "in_progress",
                                "role": "assistant", "content": []}})"));
  EXPECT_EQ(events[12], json::parse(R"({"type": "response.output_text.delta",
    "sequence_number": 12, "item_id": "msg_1_1", "output_index": 1, "content_index": 0,
    "delta": "i", "logprobs": []})"));
  EXPECT_EQ(events[13], json::parse(R"({"type": "response.output_text.done",
    "sequence_number": 13, "item_id": "msg_1_1", "output_index": 1, "content_index": 0,
    "text": "Hi", "logprobs": []})"));
  EXPECT_EQ(events[17], json::parse(R"({"type": "response.function_call_arguments.delta",
    "sequence_number": 17, "item_id": "fc_1_2", "output_index": 2, "delta": "{}"})"));
  json output = json::array();
  for (const std::size_t i : {8u, 15u, 19u}) output.push_back(events[i]["item"]);
  EXPECT_EQ(events.back()["response"]["output"], output);
  EXPECT_EQ(events.back()["response"]["status"], "completed");
}

TEST(ResponsesAnswerTest, LimitMakesTheResponseIncomplete) {
  const auto answer = Answer(R"(, "stream": true)");
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 }"), &bytes);
  answer->Take(0, Message(R"(delta { text: "Hi" })"), &bytes);
  answer->Take(0, Message("completed { finish_reason: FINISH_REASON_LENGTH }"), &bytes);
  answer->AppendEnd(&bytes);
  const json last = Events(bytes).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["status"], "incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"],
            json::parse(R"({"reason": "max_output_tokens"})"));
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
}

TEST(ResponsesAnswerTest, AnswerWithoutOutputHasAnEmptyText) {
  const auto answer = Answer("");
  answer->Take(0, Message("started { prompt_tokens: 3 }"), nullptr);
  answer->Take(0, Message("completed { finish_reason: FINISH_REASON_EOS }"), nullptr);
  const json output = json::parse(answer->TakeBody())["output"];
  ASSERT_EQ(output.size(), 1u);
  EXPECT_EQ(output[0]["content"][0]["text"], "");
}

TEST(ResponsesAnswerTest, LogprobsBelongToTheText) {
  const auto answer = Answer(R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 1)");
  answer->Take(0, Message("started { prompt_tokens: 3 }"), nullptr);
  answer->Take(0, Message(R"(completed { finish_reason: FINISH_REASON_EOS text: "a" logprobs {
    token_id: 1 logprob: -0.5 token_bytes: "a"
    top { token_id: 1 logprob: -0.5 token_bytes: "a" } } })"),
               nullptr);
  EXPECT_EQ(json::parse(answer->TakeBody())["output"][0]["content"][0]["logprobs"], json::parse(R"([
    {"token": "a", "logprob": -0.5, "bytes": [97],
     "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}])"));
}

TEST(ResponsesAnswerTest, LogprobsWaitForTheirText) {
  const auto answer = Answer(R"(, "include": ["message.output_text.logprobs"], "stream": true)");
  std::string bytes;
  const auto token = [](const std::string& text) {
    return "logprobs { logprob: -1 token_bytes: '" + text + "' } ";
  };
  answer->Take(0, Message("started { prompt_tokens: 3 }"), &bytes);
  answer->Take(0, Message("delta { reasoning_text: 'r' " + token("r") + "}"), &bytes);
  answer->Take(0, Message("delta { " + token("</think>") + "}"), &bytes);
  answer->Take(0, Message("delta { text: 'a' " + token("a") + "}"), &bytes);
  answer->Take(0, Message("delta { " + token("</s>") + "}"), &bytes);
  answer->Take(0, Message("completed { finish_reason: FINISH_REASON_EOS }"), &bytes);
  answer->AppendEnd(&bytes);
  const json output = Events(bytes).back()["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  std::string tokens;
  for (const json& entry : output[1]["content"][0]["logprobs"]) {
    absl::StrAppend(&tokens, entry["token"].get<std::string>(), " ");
  }
  EXPECT_EQ(tokens, "r </think> a </s> ");
}

TEST(ResponsesAnswerTest, ErrorEndsTheStream) {
  const auto answer = Answer(R"(, "stream": true)");
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 }"), &bytes);
  answer->Take(0, Message(R"(delta { text: "Hi" })"), &bytes);
  ApiError late;
  late.message = "too late";
  late.code = "deadline_exceeded";
  answer->AppendError(OpenAiErrorBody(late), &bytes);
  const std::vector<json> events = Events(bytes);
  const json& error = events[events.size() - 2];
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["message"], "too late");
  EXPECT_EQ(error["code"], "deadline_exceeded");
  EXPECT_TRUE(error["param"].is_null());
  const json& failed = events.back();
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"],
            json::parse(R"({"code": "deadline_exceeded", "message": "too late"})"));
  EXPECT_TRUE(failed["response"]["usage"].is_null());
}

}  // namespace
}  // namespace quire::server
