#include "server/dialects/responses_request.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "google/protobuf/text_format.h"
#include "server/dialects/anthropic_request.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using nlohmann::json;

absl::StatusOr<OpenAiRequest> Parse(const std::string& body) {
  return ParseResponsesRequest(body, {});
}

void ExpectPrompt(const absl::StatusOr<OpenAiRequest>& parsed, const std::string& wanted) {
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->prompts.size(), 1u);
  v1::GenerateRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(wanted, &request));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed->prompts[0], request))
      << parsed->prompts[0].DebugString();
}

// Returns the error object of a refused body.
json Refusal(const std::string& body) {
  const auto parsed = Parse(body);
  EXPECT_FALSE(parsed.ok()) << body;
  if (parsed.ok()) return {};
  const HttpAnswer answer = OpenAiError(parsed.status());
  EXPECT_EQ(answer.status, 400) << body;
  return json::parse(answer.body)["error"];
}

TEST(ResponsesRequestTest, ParsesEveryOption) {
  const auto parsed = Parse(R"({
    "model": "m", "instructions": "Be brief.", "input": "Hi", "max_output_tokens": 7,
    "temperature": 0.5, "top_p": 0.25, "stream": true,
    "stream_options": {"include_obfuscation": true},
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 3,
    "reasoning": {"effort": "none", "summary": "auto"}, "parallel_tool_calls": false,
    "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
                        "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}},
    "metadata": {"k": "v"}, "user": "me", "store": true, "background": false,
    "truncation": "disabled", "service_tier": "auto", "previous_response_id": null})");
  ExpectPrompt(parsed, R"(
    model: "m"
    chat { messages { role: "system" content: "Be brief." } messages { role: "user" content: "Hi" }
           parallel_tool_calls: false
           template_vars {
             fields { key: "enable_thinking" value { bool_value: false } }
             fields { key: "reasoning_effort" value { string_value: "none" } } } }
    sampling { temperature: 0.5 top_p: 0.25 } stopping { max_tokens: 7 }
    output { stream: true text: true logprobs: 3 parse: true }
    constraint { json_schema: '{"type":"object","properties":{"b":{},"a":{}}}' }
    labels { key: "user" value: "me" })");
  EXPECT_TRUE(parsed->stream && parsed->logprobs);
  const json repeated = json::parse(absl::StrCat("{", parsed->repeated_members, "}"));
  EXPECT_EQ(repeated["metadata"], json::parse(R"({"k": "v"})"));
  EXPECT_EQ(repeated["text"]["format"]["name"], "n");
  EXPECT_EQ(repeated["tools"], json::array());
}

TEST(ResponsesRequestTest, ItemsOfOneTurnAreOneMessage) {
  ExpectPrompt(Parse(R"({"input": [
    {"role": "developer", "content": "Use tools."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"},
                                                    {"type": "input_text", "text": "In Paris."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [],
     "content": [{"type": "reasoning_text", "text": "I look."}]},
    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
     "content": [{"type": "output_text", "text": "A moment.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\": 1}"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2",
     "output": [{"type": "input_text", "text": "sun"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "One"},
                                      {"type": "summary_text", "text": "Two"}]},
    {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}]})"),
               R"(
    chat {
      messages { role: "developer" content: "Use tools." }
      messages { role: "user" parts { text: "Weather?" } parts { text: "In Paris." } }
      messages { role: "assistant" content: "A moment." reasoning_content: "I look."
                 tool_calls { id: "c1" name: "f" arguments_json: "{}" }
                 tool_calls { id: "c2" name: "g" arguments_json: "{\"a\": 1}" } }
      messages { role: "tool" content: "rain" tool_call_id: "c1" }
      messages { role: "tool" content: "sun" tool_call_id: "c2" }
      messages { role: "assistant" reasoning_content: "One\nTwo"
                 tool_calls { id: "c3" name: "f" arguments_json: "{}" } } }
    sampling {} output { text: true parse: true })");
}

TEST(ResponsesRequestTest, ToolsAndTheirChoice) {
  const std::string tools = R"("input": "a", "tools": [
    {"type": "function", "name": "f", "description": "Does.", "strict": true,
     "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}},
    {"type": "function", "name": "g", "parameters": null, "strict": null}])";
  const std::string rest = R"( sampling {} output { text: true parse: true })";
  const std::string user = R"(messages { role: "user" content: "a" } )";
  const std::string f = R"(tools { name: "f" description: "Does." strict: true
    parameters_json_schema: '{"type": "object", "properties": {"z": {}, "a": {}}}' } )";
  const std::string both = user + f + R"(tools { name: "g" } )";
  ExpectPrompt(Parse("{" + tools + "}"), "chat { " + both + "}" + rest);
  ExpectPrompt(Parse("{" + tools + R"(, "tool_choice": "required"})"),
               "chat { " + both + "tool_choice: TOOL_CHOICE_REQUIRED }" + rest);
  ExpectPrompt(Parse("{" + tools + R"(, "tool_choice": {"type": "function", "name": "g"}})"),
               "chat { " + both + "tool_choice: TOOL_CHOICE_NAMED tool_name: 'g' }" + rest);
  const auto allowed = Parse("{" + tools + R"(, "tool_choice": {"type": "allowed_tools",
      "mode": "auto", "tools": [{"type": "function", "name": "g"}]}})");
  ExpectPrompt(allowed,
               "chat { " + user + "tools { name: 'g' } tool_choice: TOOL_CHOICE_AUTO }" + rest);
  EXPECT_EQ(allowed->names.Rename("chat.tools[0].parameters_json_schema"), "tools[1].parameters");
}

TEST(ResponsesRequestTest, ErrorsNameFieldsOfTheBody) {
  const auto parsed = Parse(R"({"instructions": "x", "input": [
    {"role": "user", "content": "a"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "no JSON"}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const FieldNames& names = parsed->names;
  EXPECT_EQ(names.Rename("chat.messages[0].content"), "instructions.content");
  EXPECT_EQ(names.Rename("chat.messages[1].role"), "input[0].role");
  EXPECT_EQ(names.Rename("chat.messages[2].tool_calls[0]"), "input[1]");
  EXPECT_EQ(names.Rename("prompt"), "input");
  EXPECT_EQ(names.Rename("stopping.max_tokens"), "max_output_tokens");
  EXPECT_EQ(names.Rename("output.logprobs"), "top_logprobs");
}

TEST(ResponsesRequestTest, RefusesByName) {
  for (const auto& [body, param, message] : std::vector<std::array<std::string, 3>>{
           {R"({})", "input", "input is missing"},
           {R"({"input": 5})", "input", "input must be a string or a list of items"},
           {R"({"input": "a", "instruction": "b"})", "instruction",
            "instruction is not a known field; did you mean instructions?"},
           {R"({"input": "a", "previous_response_id": "resp_1"})", "previous_response_id",
            "previous_response_id is not supported; responses are not stored; send the whole "
            "conversation as input"},
           {R"({"input": "a", "background": true})", "background",
            "background is not supported; use stream, or call from a thread of the client"},
           {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
            "input[0].content[0].type",
            R"(input[0].content[0].type is "input_image", which is not supported; the model reads )"
            "text only; use parts of type input_text"},
           {R"({"input": [{"type": "web_search_call", "id": "w"}]})", "input[0].type",
            R"(input[0].type is "web_search_call", which is not supported; use message, )"
            "function_call, function_call_output and reasoning items"},
           {R"({"input": [{"role": "user"}]})", "input[0].content", "input[0].content is missing"},
           {R"({"input": [{"role": "user", "content": "a", "output": "b"}]})", "input[0].output",
            "input[0].output is not a known field; remove it, or set openai.unknown_fields to warn "
            "in "
            "the server's configuration"},
           {R"({"input": "a", "tool_choice": {"type": "function", "name": "f", "tools": []}})",
            "tool_choice.tools",
            "tool_choice.tools is not a known field; remove it, or set openai.unknown_fields to "
            "warn "
            "in the server's configuration"},
           {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})",
            "input[0].call_id", "input[0].call_id is missing"},
           {R"({"input": "a", "tools": [{"type": "web_search"}]})", "tools[0].type",
            R"(tools[0].type is "web_search", which is not supported; describe the tool as a )"
            "function that the client runs"},
           {R"({"input": "a", "tool_choice": {"type": "mcp", "server_label": "s"}})",
            "tool_choice.type", ""},
           {R"({"input": "a", "tool_choice": {"type": "allowed_tools", "mode": "auto",
                "tools": [{"type": "function", "name": "f"}]}})",
            "tool_choice.tools[0]",
            R"(tool_choice.tools[0] has the name "f", it must be the name of one of the tools)"},
           {R"({"input": "a", "text": {"format": {"type": "grammar"}}})", "text.format.type",
            R"(text.format.type is "grammar", which is not supported; use text, json_object or )"
            "json_schema"},
           {R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}})",
            "text.format.schema", "text.format.schema is missing"},
           {R"({"input": "a", "text": 5})", "text", "text must be an object"},
           {R"({"input": "a", "reasoning": {"effort": "hard"}})", "reasoning.effort",
            "reasoning.effort must be one of none, minimal, low, medium, high, xhigh, max"},
           {R"({"input": "a", "top_logprobs": 2})", "top_logprobs",
            "top_logprobs needs message.output_text.logprobs in include"},
           {R"({"input": "a", "include": ["all"]})", "include[0]", ""}}) {
    const json error = Refusal(body);
    EXPECT_EQ(error["param"], param) << body;
    if (message.empty()) continue;
    EXPECT_EQ(error["message"], message) << body;
  }
}

TEST(ResponsesRequestTest, DocumentationNamesEveryField) {
  std::ifstream file(QUIRE_DOCS_FOLDER "/openai.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  const std::size_t responses = page.find("| `/v1/responses` | Field |");
  const std::size_t messages = page.find("| `/v1/messages` | Field |");
  ASSERT_TRUE(responses < messages && messages < page.size());
  const std::size_t end = page.find("\n## ", messages);
  for (const auto& [fields, section] :
       {std::pair(ResponsesFields(), page.substr(responses, messages - responses)),
        std::pair(AnthropicFields(), page.substr(messages, end - messages))}) {
    for (const RequestField& field : fields) {
      EXPECT_THAT(section, testing::HasSubstr(absl::StrCat("`", field.name, "`")));
    }
  }
}

}  // namespace
}  // namespace quire::server
