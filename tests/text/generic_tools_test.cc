// Templates that do not print tools: requests with tools are rejected, or the tools are added in
// the generic format. kInstructions repeats the instructions that text/chat/generic_tools.cc
// writes.

#include "text/chat/generic_tools.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reason_of.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tools/output_parser.h"

namespace quire::text {
namespace {

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// This template raises an error for a system role and for user and assistant that do not alternate.
constexpr char kAlternating[] =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}";
constexpr char kWithTools[] =
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{{ messages[-1].content }}";

std::shared_ptr<const ChatTemplates> Load(const std::string& source, bool is_generic) {
  const nlohmann::json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", nlohmann::json::array()}}}};
  const auto made = Tokenizer::FromJson(tokenizer.dump(), "{}");
  EXPECT_TRUE(made.ok()) << made.status();
  ChatOptions options;
  options.generic_tools = is_generic;
  auto templates = ChatTemplates::Create(FindTemplates({.template_file = source}), **made, options);
  EXPECT_TRUE(templates.ok()) << templates.status();
  return *std::move(templates);
}

ChatInput Conversation(std::vector<ChatMessage> messages, bool has_tools = true) {
  ChatInput chat;
  chat.messages = std::move(messages);
  if (!has_tools) return chat;
  chat.tools = {{.name = "get_weather",
                 .description = "Weather of a city.",
                 .parameters_json = R"({"type": "object", "properties": {"city": {}}})"},
                {.name = "now", .description = "The time."}};
  return chat;
}

std::string TextOf(const ChatTemplates& templates, const ChatInput& chat) {
  const auto rendered = templates.Render(chat, absl::UnixEpoch());
  return rendered.ok() ? rendered->text : absl::StrCat("ERROR ", rendered.status().message());
}

constexpr char kInstructions[] =
    "You can call the tools below. Each line describes one of them as a JSON object.\n"
    "<tools>\n"
    "{\"name\": \"get_weather\", \"description\": \"Weather of a city.\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"city\": {}}}}\n"
    "{\"name\": \"now\", \"description\": \"The time.\"}\n"
    "</tools>\n"
    "\n"
    "To call a tool, answer with a JSON object that holds the tool's name and its arguments, "
    "between "
    "<tool_call> and </tool_call>:\n"
    "<tool_call>\n"
    "{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n"
    "</tool_call>\n"
    "Write one such block for each call. The next message then holds the results, in the order of "
    "the calls, each between <tool_response> and </tool_response>. Answer in plain text when no "
    "tool "
    "is needed.";

TEST(GenericToolsTest, AddsToolsInASystemMessage) {
  const auto templates = Load(kChatMl, true);
  EXPECT_EQ(TextOf(*templates, Conversation({{.role = "user", .content = "Hi"}})),
            absl::StrCat("<|im_start|>system\n", kInstructions,
                         "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
  for (const std::string role : {"system", "developer"}) {
    EXPECT_EQ(TextOf(*templates, Conversation({{.role = role, .content = "Be brief."},
                                               {.role = "user", .content = "Hi"}})),
              absl::StrCat("<|im_start|>system\nBe brief.\n\n", kInstructions,
                           "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
  }
  EXPECT_EQ(
      TextOf(*templates, Conversation({{.role = "system", .content = ""}})),
      absl::StrCat("<|im_start|>system\n", kInstructions, "<|im_end|>\n<|im_start|>assistant\n"));
  // A conversation without tools is unchanged.
  EXPECT_EQ(TextOf(*templates, Conversation({{.role = "user", .content = "Hi"}}, false)),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(GenericToolsTest, AddsToolsInTheFirstUserMessageWithoutASystemRole) {
  EXPECT_EQ(
      TextOf(*Load(kAlternating, true), Conversation({{.role = "user", .content = "Hi"},
                                                      {.role = "assistant", .content = "Yes?"},
                                                      {.role = "user", .content = "Go"}})),
      absl::StrCat("[user]", kInstructions, "\n\nHi[assistant]Yes?[user]Go"));
  // The tools are not added to a system message that the template would drop.
  const auto silent =
      Load("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", true);
  EXPECT_EQ(TextOf(*silent, Conversation({{.role = "system", .content = "Be brief."},
                                          {.role = "user", .content = "Hi"}})),
            absl::StrCat(kInstructions, "\n\nHi"));
  EXPECT_EQ(TextOf(*Load(kAlternating, true), Conversation({{.role = "user"}})),
            absl::StrCat("[user]", kInstructions));
}

// The instructions are inserted as a first message, which error indices do not count.
TEST(GenericToolsTest, ErrorIndicesCountTheMessagesOfTheClient) {
  const auto templates = Load(
      "{% for m in messages if m.role in ['system', 'user'] %}{{ m.content }}{% endfor %}", true);
  EXPECT_THAT(TextOf(*templates, Conversation({{.role = "user", .content = "Hi"},
                                               {.role = "critic", .content = "No"}})),
              ::testing::HasSubstr("chat.messages[1].role is \"critic\""));
}

// The history has calls and results. The template rejects the role `tool` and roles that do not
// alternate.
TEST(GenericToolsTest, WritesHistoryInTheFormatOfTheModel) {
  const ChatMessage calls{
      .role = "assistant",
      .content = "Let me look.",
      .tool_calls = {
          {.id = "1", .name = "get_weather", .arguments_json = R"({"city":"Oslo",  "n": 1.0})"},
          {.id = "2", .name = "now"}}};
  const auto templates = Load(kAlternating, true);
  const std::string asked =
      "[user]Weather?[assistant]Let me look.\n<tool_call>\n{\"name\": \"get_weather\", "
      "\"arguments\": {\"city\":\"Oslo\",  \"n\": 1.0}}\n</tool_call>\n<tool_call>\n{\"name\": "
      "\"now\", \"arguments\": {}}\n</tool_call>[user]<tool_response>\nrain\n</tool_response>\n"
      "<tool_response>\n12:00\n</tool_response>";
  std::vector<ChatMessage> messages = {{.role = "user", .content = "Weather?"},
                                       calls,
                                       {.role = "tool", .content = "rain", .tool_call_id = "1"},
                                       {.role = "tool", .content = "12:00", .tool_call_id = "2"}};
  EXPECT_EQ(TextOf(*templates, Conversation(messages, false)), asked);
  messages.push_back({.role = "user", .content = "Well?"});
  EXPECT_EQ(TextOf(*templates, Conversation(messages, false)), asked + "\n\nWell?");
  messages.back() = {.role = "assistant", .content = "Rain."};
  EXPECT_EQ(TextOf(*templates, Conversation(messages, false)), asked + "[assistant]Rain.");

  // The written text parses back to the same calls.
  const ChatInput written = WithGenericTools(Conversation({calls}), "", true);
  EXPECT_TRUE(written.tools.empty());
  const std::vector<ChatTool> tools = Conversation({}).tools;
  OutputParser parser(*FindToolFormat("generic"),
                      std::make_shared<const DeclaredTools>(*DeclaredTools::Create(tools)), false);
  std::vector<OutputPart> parts;
  parser.Push(written.messages[0].content, &parts);
  parser.Finish(&parts);
  std::vector<std::string> read;
  for (const OutputPart& part : parts) {
    if (part.kind == OutputPart::Kind::kCall) read.push_back(part.call.arguments_json);
  }
  EXPECT_EQ(parts[0].source, "Let me look.\n");
  EXPECT_EQ(read, (std::vector<std::string>{R"({"city":"Oslo",  "n": 1.0})", "{}"}));
}

// If text is added to content with several parts, the parts are joined by newlines.
TEST(GenericToolsTest, JoinsContentParts) {
  const ChatInput written = WithGenericTools(
      Conversation({{.role = "system", .parts = {"a", "b"}},
                    {.role = "assistant", .tool_calls = {{.name = "now"}}, .parts = {"c", "d"}},
                    {.role = "tool", .parts = {"e", "f"}},
                    {.role = "user", .parts = {"g", "h"}},
                    {.role = "user", .parts = {"i", "j"}}}),
      "tools", true);
  std::vector<std::string> contents;
  for (const ChatMessage& message : written.messages) contents.push_back(ContentText(message));
  EXPECT_EQ(contents, (std::vector<std::string>{
                          "a\nb\n\ntools",
                          "c\nd\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                          "<tool_response>\ne\nf\n</tool_response>\n\ng\nh", "i\nj"}));
  EXPECT_EQ(written.messages[3].parts.size(), 2u);
}

// Text that cannot be parsed is passed to the model unchanged.
TEST(GenericToolsTest, PassesOnMalformedArgumentsOfTheHistory) {
  const ChatInput written = WithGenericTools(
      Conversation(
          {{.role = "assistant",
            .tool_calls = {{.id = "1", .name = "a\"b", .arguments_json = "{\"city\": "}}}}),
      "", true);
  EXPECT_EQ(written.messages[0].content,
            "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": {\"city\": }\n</tool_call>");
}

TEST(GenericToolsTest, TemplateWithToolsAlsoGetsThemAsText) {
  EXPECT_EQ(TextOf(*Load(kWithTools, true), Conversation({{.role = "user", .content = "Hi"}})),
            absl::StrCat(kInstructions, "\n\nHi"));
}

TEST(IgnoredToolsTest, AreRejectedWithARemedy) {
  for (const std::string& source :
       {std::string(kChatMl), std::string("{{ messages[-1].content }}"),
        std::string("{% if tools %}You have tools.{% endif %}{{ messages[-1].content }}"),
        std::string("{% if documents %}{{ tools }}{% endif %}{{ messages[-1].content }}")}) {
    const auto templates = Load(source, false);
    const absl::Status status =
        templates->Render(Conversation({{.role = "user", .content = "Hi"}}), absl::UnixEpoch())
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << source;
    EXPECT_EQ(ReasonOf(status), "CHAT_TEMPLATE_MISSING");
    EXPECT_EQ(GetErrorReason(status)->Find("field"), "chat.tools");
    EXPECT_EQ(status.message(),
              "tools has 2 tools, but the chat template \"default\" does not print tools; set "
              "chat.tool_format: generic, or set chat.template_file to a template that prints "
              "tools");
    EXPECT_EQ(ReasonOf(templates
                           ->Render(Conversation({{.role = "user", .content = "Hi"}}, false),
                                    absl::UnixEpoch())
                           .status()),
              "");
    EXPECT_TRUE(Load(source, true)
                    ->Render(Conversation({{.role = "user", .content = "Hi"}}), absl::UnixEpoch())
                    .ok());
  }
}

TEST(IgnoredToolsTest, ExcludeTemplatesThatPrintToolsSometimes) {
  const auto is_refused = [](const std::string& source, ChatInput chat) {
    const absl::Status status = Load(source, false)->Render(chat, absl::UnixEpoch()).status();
    return ReasonOf(status) == "CHAT_TEMPLATE_MISSING";
  };
  const ChatInput alone = Conversation({{.role = "user", .content = "Hi"}});
  EXPECT_FALSE(is_refused(kWithTools, alone));
  // Prints names only; only after a system message; only with a variable; only in long
  // conversations.
  EXPECT_FALSE(
      is_refused("{{ tools | map(attribute='function') | map(attribute='name') | join }}", alone));
  const std::string led =
      "{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}{{ messages[-1].content "
      "}}";
  EXPECT_FALSE(is_refused(led, Conversation({{.role = "system"}, {.role = "user"}})));
  const std::string chosen = "{% if with_tools %}{{ tools | tojson }}{% endif %}";
  EXPECT_TRUE(is_refused(chosen, alone));
  ChatInput with_variable = alone;
  with_variable.template_vars_json = R"({"with_tools": true})";
  EXPECT_FALSE(is_refused(chosen, with_variable));
  const std::string later = "{% if messages | length > 2 %}{{ tools | tojson }}{% endif %}";
  EXPECT_TRUE(is_refused(later, alone));
  EXPECT_FALSE(is_refused(later, Conversation({{.role = "user"}, {.role = "a"}, {.role = "b"}})));
  // A failing template reports its own error.
  EXPECT_FALSE(is_refused("{{ raise_exception('no') }}", alone));
}

}  // namespace
}  // namespace quire::text
