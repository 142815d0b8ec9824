// The tools, roles, reasoning and calls of a conversation as templates see them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/text/testdata.h"
#include "text/chat/chat_template.h"
#include "text/chat/message_roles.h"

namespace quire::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Returns the rendering, or "ERROR " and the message.
std::string Render(const std::string& source, ChatInput chat) {
  // A vocabulary is required although nothing is tokenized.
  static const auto* const tokenizer = new auto(Tokenizer::FromJson(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []})", "{}"));
  EXPECT_TRUE(tokenizer->ok()) << tokenizer->status();
  const auto templates =
      ChatTemplates::Create(FindTemplates({.template_file = source}), ***tokenizer, {});
  EXPECT_TRUE(templates.ok()) << templates.status();
  chat.add_generation_prompt = false;
  const auto text = (*templates)->Render(chat, absl::UnixEpoch());
  return text.ok() ? text->text : absl::StrCat("ERROR ", text.status().message());
}

ChatInput Conversation(std::vector<std::pair<std::string, std::string>> messages) {
  ChatInput chat;
  for (auto& [role, content] : messages) {
    chat.messages.push_back({.role = std::move(role), .content = std::move(content)});
  }
  return chat;
}

// Expected output of transformers 5.24 (jinja2 3.1.6), render_jinja_template with
// tools=[json.loads(..)].
TEST(ChatMessagesTest, PrintsToolsAsSent) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "function", "function": {"name": "f"}})",
       R"({"type": "function", "function": {"name": "f"}})"},
      {R"({"function": {"strict": false, "parameters": {"type": "object", "properties": {)"
       R"("z": {"type": "number", "default": 1.0, "minimum": 1e-7}, )"
       R"("a": {"enum": ["\u00e9", "<|x|>", null]}}, "required": []}, "name": "g-1"}, )"
       R"("type": "function"})",
       R"({"function": {"strict": false, "parameters": {"type": "object", "properties": {)"
       R"("z": {"type": "number", "default": 1.0, "minimum": 1e-07}, )"
       R"("a": {"enum": ["é", "<|x|>", null]}}, "required": []}, "name": "g-1"}, )"
       R"("type": "function"})"},
      {R"({"type":"function","cache_control":{"type":"ephemeral"},"function":{"name":"h",)"
       R"("description":"","return":{"type":"string"},"x":[1.50,-0.0,1E5,9007199254740993,1e22]}})",
       R"({"type": "function", "cache_control": {"type": "ephemeral"}, "function": {"name": "h", )"
       R"("description": "", "return": {"type": "string"}, )"
       R"("x": [1.5, -0.0, 100000.0, 9007199254740993, 1e+22]}})"},
      {R"({"function":{"name":"k","parameters":null}})",
       R"({"function": {"name": "k", "parameters": null}})"}};
  for (const auto& [json, printed] : cases) {
    ChatInput chat = Conversation({{"user", "x"}});
    chat.tools.push_back({.name = "f", .json = json});
    EXPECT_EQ(Render("{% for t in tools %}{{ t | tojson }}{% endfor %}", chat), printed);
  }
}

TEST(ChatMessagesTest, DoesNotPrintUnsetToolFields) {
  const std::string source = "{% for t in tools %}{{ t | tojson }}{% endfor %}";
  ChatInput chat = Conversation({{"user", "x"}});
  chat.tools = {{.name = "f"}};
  EXPECT_EQ(Render(source, chat), R"({"type": "function", "function": {"name": "f"}})");
  chat.tools = {{.name = "f", .parameters_json = R"({"b": 1.50, "a": {}})", .strict = true}};
  EXPECT_EQ(Render(source, chat), R"({"type": "function", "function": {"name": "f", )"
                                  R"("parameters": {"b": 1.5, "a": {}}, "strict": true}})");
  chat.tools = {{.name = "f", .description = "d"}};
  EXPECT_EQ(Render(source, chat),
            R"({"type": "function", "function": {"name": "f", "description": "d"}})");
}

TEST(ChatMessagesTest, NamesUnreadableParameters) {
  ChatInput chat = Conversation({{"user", "x"}});
  const std::string big = R"({"maximum": 18446744073709551615})";
  chat.tools.push_back({.name = "f",
                        .parameters_json = big,
                        .json = R"({"function": {"name": "f", "parameters": )" + big + "}}"});
  EXPECT_THAT(Render("{{ tools }}", chat),
              StartsWith("ERROR chat.tools[0].parameters_json_schema is "));
  chat.tools[0] = {.name = "f", .json = R"({"function": {"name": "f", "x": 1e999}})"};
  EXPECT_THAT(Render("{{ tools }}", chat), StartsWith("ERROR chat.tools[0] is "));
}

TEST(ChatMessagesTest, ReasoningHasEveryNameUsedByTemplates) {
  ChatInput chat = Conversation({{"user", "q"}, {"assistant", "a"}, {"user", "r"}});
  chat.messages[1].reasoning_content = "why";
  for (const char* const name : {"reasoning_content", "reasoning", "thinking"}) {
    EXPECT_EQ(Render(absl::StrCat("{% for m in messages %}{% if m.", name, " is defined %}[{{ m.",
                                  name, " }}]{% endif %}{{ m.content }}{% endfor %}"),
                     chat),
              "q[why]ar");
    EXPECT_EQ(Render(absl::StrCat("{% for m in messages %}{% if '", name, "' in m %}[{{ m['", name,
                                  "'] }}]{% endif %}{{ m.content }}{% endfor %}"),
                     chat),
              "q[why]ar");
  }
}

constexpr char kAnyRole[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr char kKnownRoles[] =
    "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};"
    "{% elif m.role == 'user' %}U:{{ m['content'] }};"
    "{% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}"
    "{% if tools and tools[0].type == 'function' %}{{ tools[0].name }}{% endif %}";

TEST(ChatMessagesTest, DeveloperBecomesSystemUnlessTheTemplateNamesIt) {
  const ChatInput chat = Conversation({{"developer", "d"}, {"user", "u"}});
  EXPECT_EQ(Render(kAnyRole, chat), "<system>d<user>u");
  EXPECT_EQ(Render(kKnownRoles, chat), "S:d;U:u;");
  EXPECT_EQ(Render("{% for m in messages %}{% if m.role in ['system', \"developer\"] %}"
                   "{{ m.role | upper }}{% endif %}{{ m.content }}{% endfor %}",
                   chat),
            "DEVELOPERdu");
  // A role inside a longer text does not count as named.
  EXPECT_EQ(Render(absl::StrCat("{{ 'the developer says' }}", kAnyRole), chat),
            "the developer says<system>d<user>u");
}

TEST(ChatMessagesTest, RejectsRolesThatTheTemplateDrops) {
  const auto refused = [](const std::string& source, const char* role) {
    return Render(source, Conversation({{"user", "u"}, {role, "u"}, {"user", "v"}}));
  };
  // `function` and `content` are literals of the template but not roles.
  for (const char* const role : {"critic", "function", "content", "User", "ipython"}) {
    EXPECT_EQ(refused(kKnownRoles, role),
              absl::StrCat("ERROR chat.messages[1].role is \"", role,
                           "\", which the chat template does not render: use system, user, "
                           "assistant or tool"));
    EXPECT_EQ(refused(kAnyRole, role), absl::StrCat("<user>u<", role, ">u<user>v"));
  }
  EXPECT_EQ(refused("{% for m in messages %}{{ m.content | trim | upper }}{% endfor %}", "critic"),
            "UUV");
  EXPECT_THAT(refused("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
                      "developer"),
              AllOf(HasSubstr("chat.messages[1].role is \"developer\""),
                    HasSubstr("send the text in a user message")));
  // The second of two is dropped.
  EXPECT_THAT(Render("{{ messages[0].content }}{% for m in messages[1:] if m.role == 'user' %}"
                     "{{ m.content }}{% endfor %}",
                     Conversation({{"critic", "a"}, {"user", "b"}, {"critic", "c"}})),
              HasSubstr("chat.messages[2].role is \"critic\""));
  // An error of the template itself also names the role.
  EXPECT_THAT(refused("{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
                      "{{ raise_exception('Bad role!') }}{% endif %}{% endfor %}",
                      "developer"),
              AllOf(HasSubstr("Bad role!"),
                    HasSubstr("chat.messages[1].role is \"developer\", passed to the template as "
                              "system")));
}

// Templates may drop common roles, as in transformers.
TEST(ChatMessagesTest, CommonRolesMayBeDropped) {
  EXPECT_EQ(Render(kKnownRoles, Conversation({{"user", "u"}, {"tool", "t"}})), "U:u;");
}

TEST(ChatMessagesTest, MalformedArgumentsArePassedAsText) {
  const auto render = [](const std::string& arguments, const std::string& call) {
    ChatInput chat = Conversation({{"user", "u"}, {"assistant", ""}, {"tool", "t"}});
    chat.messages[1].tool_calls.push_back({.id = "1", .name = "f", .arguments_json = arguments});
    return Render(absl::StrCat("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{",
                               call, "}{% endfor %}{% endfor %}"),
                  chat);
  };
  const std::string text_only = "{ '' + c.function.arguments }";
  const std::string either =
      "% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
      "{{ c.function.arguments | tojson }}{% endif %";
  const std::string mapping_only = "{ c.function.arguments | tojson }";
  for (const char* const malformed : {"{", "{\"a\": 1", "a=1", "{'a': 1}", "{\"a\": 1} trailing"}) {
    EXPECT_EQ(render(malformed, text_only), absl::StrCat("u", malformed, "t"));
    EXPECT_EQ(render(malformed, either), absl::StrCat("u", malformed, "t"));
    EXPECT_THAT(render(malformed, mapping_only),
                StartsWith("ERROR chat.messages[1].tool_calls[0].arguments_json is not JSON"));
  }
  // Well-formed arguments are a mapping if the template expects one.
  EXPECT_EQ(render(R"({"a":1.0})", either), R"(u{"a": 1.0}t)");
  EXPECT_EQ(render(R"({"a":1.0})", text_only), R"(u{"a":1.0}t)");
}

}  // namespace
}  // namespace quire::text
