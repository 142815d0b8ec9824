// Bodies and answers of Ollama's API.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/dialects/ollama_answer.h"
#include "server/dialects/ollama_request.h"

namespace quire::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Message>
Message Proto(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

void ExpectPrompt(const absl::StatusOr<OpenAiRequest>& parsed, const std::string& wanted) {
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->prompts.size(), 1u);
  EXPECT_TRUE(MessageDifferencer::Equals(parsed->prompts[0], Proto<v1::GenerateRequest>(wanted)))
      << parsed->prompts[0].DebugString();
}

// Returns the message of the answer to a body that is refused.
std::string ErrorOf(const absl::StatusOr<OpenAiRequest>& parsed) {
  EXPECT_FALSE(parsed.ok());
  if (parsed.ok()) return "";
  const HttpAnswer answer = OpenAiError(parsed.status(), {}, &OllamaErrorBody);
  EXPECT_EQ(answer.status, 400);
  return json::parse(answer.body)["error"];
}

TEST(OllamaRequestTest, ReadsEveryFieldOfGenerate) {
  const auto parsed = ReadOllamaGenerate(R"({
    "model": "m:latest", "prompt": "Once", "raw": true, "stream": false, "format": "json",
    "logprobs": true, "top_logprobs": 3, "keep_alive": "5m", "suffix": "", "context": [],
    "options": {"temperature": 0.5, "top_k": 4, "top_p": 0.25, "min_p": 0.125, "seed": 9,
                "num_predict": 7, "stop": ["a", "b"], "repeat_penalty": 1.5, "num_ctx": 4096,
                "presence_penalty": 1, "frequency_penalty": -1, "typical_p": 1}})",
                                         {});
  ExpectPrompt(parsed, R"(
    model: "m" text: "Once"
    sampling { temperature: 0.5 top_k: 4 top_p: 0.25 min_p: 0.125 seed: 9 repetition_penalty: 1.5
               presence_penalty: 1 frequency_penalty: -1 }
    stopping { max_tokens: 7 stop: "a" stop: "b" }
    output { text: true logprobs: 3 timings: true }
    constraint { json_object {} })");
  EXPECT_FALSE(parsed->stream);
  EXPECT_FALSE(parsed->is_chat);
}

TEST(OllamaRequestTest, PromptBecomesAUserMessageIfTheModelHasATemplate) {
  const std::string body = R"({"prompt": "Hi", "system": "Be brief.", "think": false})";
  const auto parsed = ReadOllamaGenerate(body, {});
  ExpectPrompt(parsed, R"(
    chat { messages { role: "system" content: "Be brief." } messages { role: "user" content: "Hi" }
           template_vars { fields { key: "enable_thinking" value { bool_value: false } } } }
    output { text: true stream: true timings: true parse: true })");
  EXPECT_TRUE(parsed->stream);
  const OpenAiLimits no_template = {.has_chat_template = false};
  EXPECT_EQ(ErrorOf(ReadOllamaGenerate(body, no_template)),
            "system needs a chat template, which the model does not have");
  ExpectPrompt(ReadOllamaGenerate(R"({"prompt": "Hi", "think": false})", no_template),
               R"(text: "Hi" output { text: true stream: true timings: true })");
}

TEST(OllamaRequestTest, ReadsChat) {
  const auto parsed = ReadOllamaChat(R"({
    "model": "m", "think": "high", "format": {"type": "object", "b": 1, "a": 2},
    "options": {"num_predict": -1, "seed": -1, "stop": "x"},
    "tools": [{"type": "function", "function": {"name": "f", "x": 1}}],
    "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "", "thinking": "Hm.",
       "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1.50, "a": 2}}},
                      {"id": "own", "function": {"name": "g"}}]},
      {"role": "tool", "tool_name": "g", "content": "2"},
      {"role": "tool", "content": "1"}]})",
                                     {.max_tokens = 4000});
  ExpectPrompt(parsed, R"(
    model: "m"
    chat {
      messages { role: "user" content: "Hi" }
      messages { role: "assistant" reasoning_content: "Hm."
        tool_calls { id: "call00000" name: "f" arguments_json: "{\"b\": 1.50, \"a\": 2}" }
        tool_calls { id: "own" name: "g" arguments_json: "{}" } }
      messages { role: "tool" name: "g" tool_call_id: "own" content: "2" }
      messages { role: "tool" tool_call_id: "call00000" content: "1" }
      tools { tool_json: "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"x\": 1}}" }
      template_vars { fields { key: "enable_thinking" value { bool_value: true } }
                      fields { key: "reasoning_effort" value { string_value: "high" } } } }
    sampling {}
    stopping { max_tokens: 4000 stop: "x" }
    output { text: true stream: true timings: true parse: true }
    constraint { json_schema: "{\"type\":\"object\",\"b\":1,\"a\":2}" })");
}

TEST(OllamaRequestTest, PairsToolMessagesWithOpenCalls) {
  const auto parsed = ReadOllamaChat(R"({"messages": [
      {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g"}},
                                           {"function": {"name": "f"}}]},
      {"role": "tool", "content": "1"},
      {"role": "tool", "tool_name": "f", "content": "2"},
      {"role": "tool", "tool_name": "f", "content": "3"},
      {"role": "tool", "tool_call_id": "own", "content": "4"},
      {"role": "tool", "content": "5"},
      {"role": "tool", "content": "6"}]})",
                                     {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<std::string> ids;
  for (const v1::ChatMessage& message : parsed->prompts[0].chat().messages()) {
    ids.push_back(message.tool_call_id());
  }
  // The second message for f finds no open call, and the last one neither.
  EXPECT_THAT(ids, ElementsAre("", "call00000", "call00002", "", "own", "call00001", ""));
}

TEST(OllamaRequestTest, RefusalsNameTheField) {
  struct Bad {
    const char* body;
    const char* message;
  };
  for (const Bad& bad :
       {Bad{R"({"prompt": "x", "temperature": 1})", "temperature is not a known field; remove it"},
        Bad{R"({"prompt": "x", "options": {"temperatur": 1}})",
            "options.temperatur is not a known field; did you mean temperature?"},
        Bad{R"({"prompt": "x", "images": ["aGk="]})",
            "images is not supported; the model reads and writes text only"},
        Bad{R"({"prompt": "x", "suffix": "y"})", "suffix is not supported; "},
        Bad{R"({"prompt": "x", "template": "{{ .Prompt }}"})", "template is not supported; set "},
        Bad{R"({"prompt": "x", "context": [1]})", "context is not supported; send "},
        Bad{R"({"prompt": "x", "options": {"mirostat": 1}})",
            "options.mirostat is not supported; "},
        Bad{R"({"prompt": "x", "options": {"repeat_last_n": 64}})",
            "options.repeat_last_n is not supported; the penalties read all tokens"},
        Bad{R"({"prompt": "x", "options": 1})", "options must be an object"},
        Bad{R"({"prompt": "x", "options": {"num_ctx": "big"}})",
            "options.num_ctx must be a number"},
        Bad{R"({"prompt": "x", "options": {"top_k": 1.5}})", "options.top_k"},
        Bad{R"({"prompt": "x", "format": "xml"})", "format must be \"json\" or a JSON schema"},
        Bad{R"({"prompt": "x", "think": "a lot"})", "think must be true, false, low, "},
        Bad{R"({"prompt": "x", "top_logprobs": 2})", "top_logprobs needs logprobs to be true"},
        Bad{R"({"prompt": "x", "raw": true, "system": "s"})", "system cannot be combined with raw"},
        Bad{R"({"prompt": ""})", "prompt is empty"}, Bad{R"([])", "body"}}) {
    EXPECT_THAT(ErrorOf(ReadOllamaGenerate(bad.body, {})), HasSubstr(bad.message)) << bad.body;
  }
  for (const Bad& bad :
       {Bad{R"({})", "messages is empty"}, Bad{R"({"messages": {}})", "messages must be a list"},
        Bad{R"({"messages": [1]})", "messages[0] must be an object"},
        Bad{R"({"messages": [{"content": "x"}]})", "messages[0].role is missing"},
        Bad{R"({"messages": [{"role": "user", "images": ["x"]}]})",
            "messages[0].images is not supported; "},
        Bad{R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})",
            "messages[0].tool_calls[0].function is missing"},
        Bad{R"({"messages": [{"role": "assistant",
                              "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]})",
            "messages[0].tool_calls[0].function.arguments must be an object"},
        Bad{R"({"messages": [{"role": "user"}], "tools": {}})", "tools must be a list"}}) {
    EXPECT_THAT(ErrorOf(ReadOllamaChat(bad.body, {})), HasSubstr(bad.message)) << bad.body;
  }
}

// Each field of the options of ollama 0.6.3 is in the table, once per owner.
TEST(OllamaRequestTest, TableHasEveryOption) {
  std::set<std::string> names;
  for (const RequestField& field : OllamaFields()) {
    if ((field.owners & kOllamaOptions) == 0) continue;
    EXPECT_TRUE(names.insert(std::string(field.name)).second) << field.name;
  }
  for (const char* const name : {"numa",
                                 "num_ctx",
                                 "num_batch",
                                 "num_gpu",
                                 "main_gpu",
                                 "low_vram",
                                 "f16_kv",
                                 "logits_all",
                                 "vocab_only",
                                 "use_mmap",
                                 "use_mlock",
                                 "embedding_only",
                                 "num_thread",
                                 "num_keep",
                                 "seed",
                                 "num_predict",
                                 "top_k",
                                 "top_p",
                                 "tfs_z",
                                 "typical_p",
                                 "repeat_last_n",
                                 "temperature",
                                 "repeat_penalty",
                                 "presence_penalty",
                                 "mirostat",
                                 "mirostat_tau",
                                 "mirostat_eta",
                                 "stop",
                                 "frequency_penalty",
                                 "penalize_newline"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

std::unique_ptr<AnswerWriter> Writer(bool is_chat, bool stream) {
  OpenAiRequest request;
  request.is_chat = is_chat;
  request.stream = stream;
  return MakeOllamaAnswer(
      request, {.id = "id", .model = "m", .created = 1800000000, .system_fingerprint = ""}, {});
}

constexpr char kEnd[] = R"(
    finish_reason: FINISH_REASON_LENGTH usage { prompt_tokens: 5 completion_tokens: 3 }
    timings { queue { nanos: 1 } prefill { nanos: 20 } decode { seconds: 1 nanos: 300 } })";

TEST(OllamaAnswerTest, GenerateStreamsLines) {
  const auto answer = Writer(/*is_chat=*/false, /*stream=*/true);
  std::string lines;
  answer->Take(0, Proto<v1::GenerateResponse>("started { model: \"m\" }"), &lines);
  answer->Take(0, Proto<v1::GenerateResponse>(R"(delta { reasoning_text: "Hm." })"), &lines);
  answer->Take(0, Proto<v1::GenerateResponse>(R"(delta { text: "Hé\n" logprobs {
      token_bytes: "\xC3" logprob: -0.5 top { token_bytes: "a" logprob: -1 } } })"),
               &lines);
  answer->Take(0, Proto<v1::GenerateResponse>("delta {}"), &lines);
  answer->Take(0, Proto<v1::GenerateResponse>(absl::StrCat("completed {", kEnd, "}")), &lines);
  answer->AppendEnd(&lines);
  EXPECT_EQ(lines,
            R"({"model":"m","created_at":"2027-01-15T08:00:00Z","response":"","thinking":"Hm.",)"
            R"("done":false})"
            "\n"
            R"({"model":"m","created_at":"2027-01-15T08:00:00Z","response":"Hé\n","done":false,)"
            R"("logprobs":[{"token":"�","logprob":-0.5,"bytes":[195],"top_logprobs":)"
            R"([{"token":"a","logprob":-1.0,"bytes":[97]}]}]})"
            "\n"
            R"({"model":"m","created_at":"2027-01-15T08:00:00Z","response":"","done":true,)"
            R"("done_reason":"length","total_duration":1000000321,"load_duration":0,)"
            R"("prompt_eval_count":5,"prompt_eval_duration":20,"eval_count":3,)"
            R"("eval_duration":1000000300})"
            "\n");
}

TEST(OllamaAnswerTest, ChatAnswersWithCallsAndArguments) {
  const auto answer = Writer(/*is_chat=*/true, /*stream=*/false);
  answer->Take(0,
               Proto<v1::GenerateResponse>(absl::StrCat(R"(completed { text: "Look:"
      reasoning_text: "Hm." 
      tool_calls { id: "call_1" name: "f" arguments_json: "{\"b\": 1, \"a\": 2}" }
      tool_calls { id: "call_2" name: "g" arguments_json: "{}" })",
                                                        kEnd, "}")),
               nullptr);
  EXPECT_GT(answer->buffered_bytes(), 100u);
  const std::string body = answer->TakeBody();
  EXPECT_THAT(body,
              HasSubstr(R"("message":{"role":"assistant","content":"Look:",)"
                        R"("thinking":"Hm.","tool_calls":[{"id":"call_1","function":)"
                        R"({"index":0,"name":"f","arguments":{"b": 1, "a": 2}}},)"
                        R"({"id":"call_2","function":{"index":1,"name":"g","arguments":{}}}]})"
                        R"(,"done":true)"));
}

// A line break would end the line of a stream.
TEST(OllamaAnswerTest, ArgumentsKeepTheirDigitsOnOneLine) {
  const auto answer = Writer(/*is_chat=*/true, /*stream=*/true);
  std::string lines;
  answer->Take(0, Proto<v1::GenerateResponse>(R"(completed { tool_calls { id: "c" name: "f"
      arguments_json: "{\"x\": 123456789012345678901,\r\n\"y\": 1.10}" } })"),
               &lines);
  EXPECT_THAT(lines, HasSubstr(R"("arguments":{"x": 123456789012345678901,  "y": 1.10}}}]},)"));
  EXPECT_EQ(lines.find('\n'), lines.size() - 1);
}

TEST(OllamaAnswerTest, ChatStreamsWholeCalls) {
  const auto answer = Writer(/*is_chat=*/true, /*stream=*/true);
  std::string lines;
  answer->Take(0, Proto<v1::GenerateResponse>(R"(delta { tool_calls { call_index: 1 id: "call_2"
      name: "g" arguments_json: "{\"x\":[]}" } })"),
               &lines);
  EXPECT_EQ(lines,
            R"({"model":"m","created_at":"2027-01-15T08:00:00Z","message":{"role":"assistant",)"
            R"("content":"","tool_calls":[{"id":"call_2","function":{"index":1,"name":"g",)"
            R"("arguments":{"x":[]}}}]},"done":false})"
            "\n");
}

}  // namespace
}  // namespace quire::server
