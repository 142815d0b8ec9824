#include "server/dialects/anthropic_request.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "google/protobuf/text_format.h"
#include "server/dialects/anthropic_answer.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using nlohmann::json;

absl::StatusOr<OpenAiRequest> Parse(const std::string& body) {
  return ParseAnthropicRequest(body, {});
}

void ExpectPrompt(const absl::StatusOr<OpenAiRequest>& parsed, const std::string& wanted) {
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->prompts.size(), 1u);
  v1::GenerateRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(wanted, &request));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed->prompts[0], request))
      << parsed->prompts[0].DebugString();
}

TEST(AnthropicRequestTest, ParsesEveryOption) {
  ExpectPrompt(Parse(R"({
    "model": "m", "max_tokens": 7, "stream": true, "temperature": 0.5, "top_p": 0.25, "top_k": 4,
    "stop_sequences": ["a", "b"], "metadata": {"user_id": "me"}, "service_tier": "auto",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema",
      "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}},
    "messages": [{"role": "user", "content": "Hi"}]})"),
               R"(
    model: "m"
    chat { messages { role: "system" content: "Be brief." } messages { role: "user" content: "Hi" }
           template_vars {
             fields { key: "enable_thinking" value { bool_value: true } }
             fields { key: "thinking_budget" value { number_value: 1024 } }
             fields { key: "reasoning_effort" value { string_value: "low" } } } }
    sampling { temperature: 0.5 top_p: 0.25 top_k: 4 }
    stopping { max_tokens: 7 stop: "a" stop: "b" }
    output { stream: true text: true parse: true }
    constraint { json_schema: '{"type":"object","properties":{"b":{},"a":{}}}' }
    labels { key: "user" value: "me" })");
}

TEST(AnthropicRequestTest, BlocksBecomeMessages) {
  ExpectPrompt(Parse(R"({"max_tokens": 7, "messages": [
    {"role": "user", "content": "Weather?"},
    {"role": "user", "content": [{"type": "text", "text": "In Paris."}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "I look.", "signature": ""},
      {"type": "text", "text": "A moment."},
      {"type": "tool_use", "id": "c1", "name": "f", "input": {"z": 1.50, "a": {}}},
      {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "c1", "content": "rain"},
      {"type": "tool_result", "tool_use_id": "c2", "is_error": true,
       "content": [{"type": "text", "text": "failed"}]},
      {"type": "text", "text": "Go on."}]}]})"),
               R"(
    chat {
      messages { role: "user" parts { text: "Weather?" } parts { text: "In Paris." } }
      messages { role: "assistant" content: "A moment." reasoning_content: "I look."
                 tool_calls { id: "c1" name: "f" arguments_json: '{"z": 1.50, "a": {}}' }
                 tool_calls { id: "c2" name: "g" arguments_json: "{}" } }
      messages { role: "tool" content: "rain" tool_call_id: "c1" }
      messages { role: "tool" content: "failed" tool_call_id: "c2" }
      messages { role: "user" content: "Go on." } }
    sampling {} stopping { max_tokens: 7 } output { text: true parse: true })");
}

TEST(AnthropicRequestTest, ContinuesALastMessageOfTheAssistant) {
  ExpectPrompt(Parse(R"({"max_tokens": 7, "messages": [
    {"role": "user", "content": "One word?"}, {"role": "assistant", "content": "It is"}]})"),
               R"(
    chat { messages { role: "user" content: "One word?" }
           messages { role: "assistant" content: "It is" } continue_final_message: true }
    sampling {} stopping { max_tokens: 7 } output { text: true parse: true })");
}

TEST(AnthropicRequestTest, ToolsAndTheirChoice) {
  const std::string body = R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"}],
    "tools": [{"name": "f", "description": "Does.", "type": "custom", "strict": true,
               "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}])";
  const std::string wanted = R"(chat { messages { role: "user" content: "a" }
    tools { name: "f" description: "Does." strict: true
            parameters_json_schema: '{"type": "object", "properties": {"z": {}, "a": {}}}' } )";
  const std::string rest = R"( } sampling {} stopping { max_tokens: 7 }
                                 output { text: true parse: true })";
  ExpectPrompt(Parse(body + "}"), wanted + rest);
  ExpectPrompt(
      Parse(body + R"(, "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})"),
      wanted + "tool_choice: TOOL_CHOICE_REQUIRED parallel_tool_calls: false" + rest);
  ExpectPrompt(Parse(body + R"(, "tool_choice": {"type": "tool", "name": "f"}})"),
               wanted + "tool_choice: TOOL_CHOICE_NAMED tool_name: 'f'" + rest);
  ExpectPrompt(Parse(body + R"(, "tool_choice": {"type": "none"}})"),
               wanted + "tool_choice: TOOL_CHOICE_NONE" + rest);
}

TEST(AnthropicRequestTest, RefusesByName) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"{" + messages + "}", "max_tokens is missing"},
           {R"({"max_tokens": 7})", "messages is missing"},
           {R"({"max_tokens": 7, "stop": ["a"], )" + messages + "}",
            "stop is not a known field; remove it, or set openai.unknown_fields to warn in the "
            "server's configuration"},
           {R"({"max_tokens": 7, "stop_sequence": ["a"], )" + messages + "}",
            "stop_sequence is not a known field; did you mean stop_sequences?"},
           {R"({"max_tokens": 7, "messages": [{"role": "tool", "content": "a"}]})",
            "messages[0].role must be user, assistant or system"},
           {R"({"max_tokens": 7, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {}}]}]})",
            R"(messages[0].content[0].type is "image", which is not supported; the model reads )"
            "text only; use blocks of type text"},
           {R"({"max_tokens": 7, "messages": [{"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": ""}]}]})",
            R"(messages[0].content[0].type is "redacted_thinking", which is not supported; use )"
            "blocks of type text, thinking and tool_use"},
           {R"({"max_tokens": 7, "tools": [{"type": "bash_20250124", "name": "bash"}], )" +
                messages + "}",
            R"(tools[0].type is "bash_20250124", which is not supported; describe the tool by )"
            "input_schema, without a type"},
           {R"({"max_tokens": 7, "tools": [{"name": "f"}], )" + messages + "}",
            "tools[0].input_schema is missing"},
           {R"({"max_tokens": 7, "tool_choice": {"type": "some"}, )" + messages + "}",
            R"(tool_choice.type is "some", which is not supported; use auto, any, tool or none)"},
           {R"({"max_tokens": 7, "stop_sequences": "a", )" + messages + "}",
            "stop_sequences must be a list of strings"},
           {R"({"max_tokens": 7, "thinking": {"type": "x"}, )" + messages + "}",
            R"(thinking.type is "x", which is not supported; use enabled, disabled or adaptive)"},
           {R"({"max_tokens": 7, "thinking": {"type": "adaptive", "budget_tokens": 1024}, )" +
                messages + "}",
            "thinking.budget_tokens cannot be combined with type adaptive; remove it"},
           {R"({"max_tokens": 7, "thinking": {"type": "disabled", "budget_tokens": 1024}, )" +
                messages + "}",
            "thinking.budget_tokens cannot be combined with type disabled; remove it"},
           {R"({"max_tokens": 7, "thinking": {"type": "enabled", "budget_tokens": 0}, )" +
                messages + "}",
            "thinking.budget_tokens is 0, must be in [1, 2147483647]"},
           {R"({"max_tokens": 7, "thinking": {"type": "enabled"}, )"
            R"("output_config": {"effort": "none"}, )" +
                messages + "}",
            "output_config.effort is none, but thinking is enabled; change one of them"}}) {
    const auto parsed = Parse(body);
    ASSERT_FALSE(parsed.ok()) << body;
    const HttpAnswer answer = OpenAiError(parsed.status(), {}, &AnthropicErrorBody, "id-1");
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(json::parse(answer.body),
              (json{{"type", "error"},
                    {"error", {{"type", "invalid_request_error"}, {"message", message}}},
                    {"request_id", "id-1"}}))
        << body;
  }
}

TEST(AnthropicRequestTest, ErrorsNameFieldsOfTheBody) {
  const auto parsed = Parse(R"({"max_tokens": 7, "system": "x", "messages": [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    ]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const FieldNames& names = parsed->names;
  EXPECT_EQ(names.Rename("chat.messages[0].role"), "system.role");
  EXPECT_EQ(names.Rename("chat.messages[1].content"), "messages[0].content");
  EXPECT_EQ(names.Rename("chat.messages[2].tool_calls[0]"), "messages[1].content[0]");
  EXPECT_EQ(names.Rename("stopping.stop[1]"), "stop_sequences[1]");
  EXPECT_EQ(names.Rename("stopping.max_tokens"), "max_tokens");
  EXPECT_EQ(names.Rename("chat.tools[0].parameters_json_schema"), "tools[0].input_schema");
}

}  // namespace
}  // namespace quire::server
