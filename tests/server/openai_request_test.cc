#include "server/openai/openai_request.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/json_text.h"
#include "google/protobuf/text_format.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

using google::protobuf::util::MessageDifferencer;

v1::GenerateRequest Proto(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request));
  return request;
}

void ExpectPrompt(const absl::StatusOr<OpenAiRequest>& parsed, const std::string& wanted,
                  std::size_t index = 0) {
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_LT(index, parsed->prompts.size());
  EXPECT_TRUE(MessageDifferencer::Equals(parsed->prompts[index], Proto(wanted)))
      << parsed->prompts[index].DebugString();
}

// Returns the field that the error names, or adds a failure and returns "".
std::string FieldOf(const absl::StatusOr<OpenAiRequest>& parsed) {
  EXPECT_FALSE(parsed.ok());
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
  const auto reason = GetErrorReason(parsed.status());
  return reason ? reason->Find("field").value_or("") : "";
}

TEST(OpenAiRequestTest, ParsesEveryCompletionField) {
  const auto parsed = ParseCompletionRequest(R"({
    "model": "m", "prompt": "Once", "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "n": 2,
    "stream": true, "stream_options": {"include_usage": true}, "logprobs": 3,
    "echo": true, "stop": ["a", "b"], "presence_penalty": 1, "frequency_penalty": -1, "best_of": 2,
    "logit_bias": {"5": -100, "6": 1.5}, "user": "me", "seed": -9, "top_k": 4, "min_p": 0.125,
    "dry_multiplier": 0.75, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", "."],
    "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.25,
    "repetition_penalty": 1.5, "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [1, 2],
    "include_stop_str_in_output": true, "cache_salt": "s", "priority": -3,
    "skip_special_tokens": false, "bad_words": ["x", "y z"],
    "add_special_tokens": false, "suffix": null, "nobody_knows_this": null})");
  ExpectPrompt(parsed, R"(
    model: "m" text: "Once"
    sampling { temperature: 0.5 top_p: 0.25 top_k: 4 min_p: 0.125 repetition_penalty: 1.5
               dry_multiplier: 0.75 dry_base: 2 dry_allowed_length: 3 dry_window_tokens: 64
               dry_sequence_breakers: "\n" dry_sequence_breakers: "."
               top_n_sigma: 1.5 xtc_probability: 0.5 xtc_threshold: 0.25
               presence_penalty: 1 frequency_penalty: -1 seed: -9 choice_count: 2
               logit_bias { key: 5 value: -100 } logit_bias { key: 6 value: 1.5 }
               banned_text: "x" banned_text: "y z" }
    stopping { max_tokens: 7 min_tokens: 2 stop: "a" stop: "b" stop_token_ids: [1, 2]
               ignore_eos: true
               include_stop_text: true }
    output { stream: true text: true token_ids: true logprobs: 3 prompt_logprobs: 3
             echo_prompt: true
             skip_special_tokens: false }
    priority: -3 cache { salt: "s" } labels { key: "user" value: "me" }
    add_special_tokens: false)");
  EXPECT_TRUE(parsed->stream && parsed->include_usage && parsed->echo && parsed->logprobs);
  EXPECT_FALSE(parsed->is_chat || parsed->hides_output);
  EXPECT_EQ(parsed->choices, 2);
}

// llama.cpp defines these values for the whole context and for no tokens.
TEST(OpenAiRequestTest, DryWindowMayBeTheContextOrEmpty) {
  const auto parse = [](const std::string& last_n) {
    return ParseCompletionRequest(R"({"prompt": "a", "dry_multiplier": 1, "dry_penalty_last_n": )" +
                                  last_n + "}");
  };
  ExpectPrompt(parse("-1"), R"(text: "a" sampling { dry_multiplier: 1 dry_window_tokens: 0 }
                               stopping {} output { text: true })");
  ExpectPrompt(parse("0"), R"(text: "a" sampling { dry_multiplier: 0 dry_window_tokens: 0 }
                              stopping {} output { text: true })");
}

TEST(OpenAiRequestTest, ParsesPromptsOfEveryForm) {
  const std::string rest = " sampling {} stopping {} output { text: true }";
  const auto parse = [](const std::string& prompt) {
    return ParseCompletionRequest("{\"prompt\": " + prompt + "}");
  };
  ExpectPrompt(parse(R"("a")"), "text: 'a'" + rest);
  ExpectPrompt(parse(R"([1, 2])"), "token_ids { ids: [1, 2] }" + rest);
  const auto texts = parse(R"(["a", "b"])");
  ExpectPrompt(texts, "text: 'b'" + rest, 1);
  const auto ids = parse(R"([[1], [2, 3], [4]])");
  ExpectPrompt(ids, "token_ids { ids: [2, 3] }" + rest, 1);
  EXPECT_EQ(ids->prompts.size(), 3u);
  // Empty prompts are rejected after parsing, with a specific message.
  ExpectPrompt(parse("[]"), "token_ids {}" + rest);
  EXPECT_EQ(FieldOf(parse("null")), "prompt");
  EXPECT_EQ(FieldOf(parse("5")), "prompt");
  EXPECT_EQ(FieldOf(parse(R"([1, "a"])")), "prompt[1]");
  EXPECT_EQ(FieldOf(parse(R"([[1], [2, "b"]])")), "prompt[1][1]");
  EXPECT_EQ(FieldOf(parse(R"([{}])")), "prompt[0]");
}

TEST(OpenAiRequestTest, EchoWithoutTokensGeneratesOneHiddenToken) {
  const auto parsed =
      ParseCompletionRequest(R"({"prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 1})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->hides_output);
  EXPECT_EQ(parsed->prompts[0].stopping().max_tokens(), 1);
  const auto plain = ParseCompletionRequest(R"({"prompt": "a", "max_tokens": 0})");
  EXPECT_FALSE(plain->hides_output);
  EXPECT_EQ(plain->prompts[0].stopping().max_tokens(), 0);
}

TEST(OpenAiRequestTest, ParsesEveryChatField) {
  const auto parsed = ParseChatRequest(R"({
    "model": "m", "max_tokens": 9, "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2,
    "top_k": -1, "stop": "x",
    "messages": [
      {"role": "system", "content": [{"type": "text", "text": "Be "},
                                     {"type": "text", "text": "kind"}]},
      {"role": "user", "content": "Hi", "name": "Ann"},
      {"role": "assistant", "content": null, "reasoning_content": "why",
       "tool_calls": [{"id": "c1", "type": "function",
                       "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "content": "4", "tool_call_id": "c1"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
               "parameters": {"type": "object"}, "strict": true}}],
    "tool_choice": "auto", "parallel_tool_calls": false,
    "chat_template_kwargs": {"enable_thinking": false},
    "continue_final_message": true, "add_generation_prompt": false})");
  ExpectPrompt(parsed, R"(
    model: "m" sampling { top_k: 0 } stopping { max_tokens: 5 stop: "x" }
    output { text: true logprobs: 2 parse: true }
    chat {
      tool_choice: TOOL_CHOICE_AUTO parallel_tool_calls: false
      messages { role: "system" parts { text: "Be " } parts { text: "kind" } }
      messages { role: "user" content: "Hi" name: "Ann" }
      messages { role: "assistant" reasoning_content: "why"
                 tool_calls { id: "c1" name: "f" arguments_json: "{}" } }
      messages { role: "tool" content: "4" tool_call_id: "c1" }
      tools { tool_json: "{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                         "\"description\": \"d\",\n               \"parameters\": "
                         "{\"type\": \"object\"}, \"strict\": true}}" }
      template_vars { fields { key: "enable_thinking" value { bool_value: false } } }
      add_generation_prompt: false continue_final_message: true })");
  EXPECT_TRUE(parsed->is_chat && parsed->logprobs);
}

TEST(OpenAiRequestTest, RejectsInvalidChatFields) {
  const auto with = [](const std::string& more) {
    return ParseChatRequest(R"({"messages": [{"role": "user", "content": "a"}], )" + more + "}");
  };
  const auto message = [](const std::string& text) {
    return ParseChatRequest("{\"messages\": [" + text + "]}");
  };
  EXPECT_EQ(FieldOf(ParseChatRequest("{}")), "messages");
  EXPECT_EQ(FieldOf(ParseChatRequest(R"({"messages": "a"})")), "messages");
  EXPECT_EQ(FieldOf(message("5")), "messages[0]");
  EXPECT_EQ(FieldOf(message("{}")), "messages[0].role");
  EXPECT_EQ(FieldOf(message(R"({"role": 1})")), "messages[0].role");
  EXPECT_EQ(FieldOf(message(R"({"role": "user", "content": 1})")), "messages[0].content");
  const auto continued = [](const std::string& text) {
    return ParseChatRequest("{\"continue_final_message\": true, \"messages\": [" + text + "]}");
  };
  const std::string user = R"({"role": "user", "content": "a"}, )";
  EXPECT_EQ(FieldOf(continued(user + R"({"role": "assistant"})")), "messages[1].content");
  EXPECT_EQ(FieldOf(continued(user + R"({"role": "assistant", "content": null})")),
            "messages[1].content");
  EXPECT_EQ(FieldOf(continued(R"({"role": "assistant", "reasoning_content": "hm"})")),
            "messages[0].content");
  EXPECT_TRUE(continued(user + R"({"role": "assistant", "content": ""})").ok());
  EXPECT_EQ(
      FieldOf(message(
          R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]})")),
      "messages[0].content[0].image_url");
  EXPECT_EQ(FieldOf(message(R"({"role": "user", "content": [{"type": "video"}]})")),
            "messages[0].content[0]");
  EXPECT_EQ(FieldOf(message(R"({"role": "assistant", "tool_calls": [{"function": {}}]})")),
            "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(FieldOf(with(R"("tool_choice": "some")")), "tool_choice");
  EXPECT_EQ(FieldOf(with(R"("tool_choice": {"type": "function"})")), "tool_choice");
  EXPECT_EQ(FieldOf(with(R"("tool_choice": {"function": {}})")), "tool_choice.function.name");
  EXPECT_EQ(FieldOf(with(R"("parallel_tool_calls": 1)")), "parallel_tool_calls");
  EXPECT_EQ(FieldOf(with(R"("tools": [{"type": "retrieval"}])")), "tools[0]");
  EXPECT_EQ(FieldOf(with(R"("tools": [{"function": {"name": "f", "strict": 1}}])")),
            "tools[0].function.strict");
  EXPECT_EQ(FieldOf(with(R"("top_logprobs": 2)")), "top_logprobs");
  EXPECT_EQ(FieldOf(with(R"("logprobs": 2)")), "logprobs");
  EXPECT_EQ(FieldOf(with(R"("chat_template_kwargs": [])")), "chat_template_kwargs");
}

TEST(OpenAiRequestTest, ParsesToolChoice) {
  const auto chat = [](const std::string& choice) {
    const auto parsed = ParseChatRequest(
        R"({"messages": [], "tools": [{"function": {"name": "f"}}], "tool_choice": )" + choice +
        "}");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->prompts[0].chat();
  };
  EXPECT_EQ(chat("null").tool_choice(), v1::TOOL_CHOICE_UNSPECIFIED);
  EXPECT_EQ(chat(R"("none")").tool_choice(), v1::TOOL_CHOICE_NONE);
  EXPECT_EQ(chat(R"("none")").tools_size(), 1);
  EXPECT_EQ(chat(R"("required")").tool_choice(), v1::TOOL_CHOICE_REQUIRED);
  const v1::ChatPrompt named = chat(R"({"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(named.tool_choice(), v1::TOOL_CHOICE_NAMED);
  EXPECT_EQ(named.tool_name(), "f");
}

TEST(OpenAiRequestTest, ResponseFormatsBecomeConstraints) {
  const auto parse = [](const std::string& format) {
    return ParseChatRequest(R"({"messages": [], "response_format": )" + format + "}");
  };
  EXPECT_FALSE(parse(R"({"type": "text"})")->prompts[0].has_constraint());
  EXPECT_TRUE(parse(R"({"type": "json_object"})")->prompts[0].constraint().has_json_object());
  EXPECT_EQ(
      parse(R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}})")
          ->prompts[0]
          .constraint()
          .json_schema(),
      R"({"type":"null"})");
  EXPECT_EQ(FieldOf(parse(R"({"type": "grammar"})")), "response_format");
  for (const char* const format :
       {R"({"type": "json_object", "schema": {"type": "array"}})",
        R"({"type": "json_object", "json_schema": {"schema": {"type": "array"}}})",
        R"({"type": "json_object", "json_schema": {"type": "array"}})",
        R"({"type": "json_schema", "schema": {"type": "array"}})",
        R"({"type": "json_schema", "json_schema": {"schema": "{\"type\":\"array\"}"}})"}) {
    const auto parsed = parse(format);
    ASSERT_TRUE(parsed.ok()) << format << parsed.status();
    EXPECT_EQ(parsed->prompts[0].constraint().json_schema(), R"({"type":"array"})") << format;
  }
  for (const char* const format :
       {R"({"type": "json_object", "schema": {}})", R"({"type": "json_object", "schema": null})",
        R"({"type": "json_object", "json_schema": {"schema": true}})"}) {
    EXPECT_TRUE(parse(format)->prompts[0].constraint().has_json_object()) << format;
  }
  // Keys keep the order of the body, since generated objects follow it.
  EXPECT_EQ(parse(R"({"type": "json_schema", "json_schema": {"schema":
                {"properties": {"b": {}, "a": {}}}}})")
                ->prompts[0]
                .constraint()
                .json_schema(),
            R"({"properties":{"b":{},"a":{}}})");
}

// Ignoring such a member would constrain the output less than requested.
TEST(OpenAiRequestTest, RejectsResponseFormatsWithOtherMembers) {
  const auto field = [](const std::string& format) {
    return FieldOf(ParseChatRequest(R"({"messages": [], "response_format": )" + format + "}"));
  };
  EXPECT_EQ(field(R"({"type": "text", "schema": {"type": "integer"}})"), "response_format.schema");
  EXPECT_EQ(field(R"({"type": "text", "json_schema": {"schema": {}}})"),
            "response_format.json_schema");
  EXPECT_EQ(field(R"({"type": "json_object", "regex": "a+"})"), "response_format.regex");
  EXPECT_EQ(field(R"({"type": "json_object", "schema": {}, "json_schema": {"schema": {}}})"),
            "response_format.schema");
  EXPECT_EQ(field(R"({"type": "json_schema"})"), "response_format");
  EXPECT_EQ(field(R"({"type": "json_schema", "json_schema": {"name": "n"}})"),
            "response_format.json_schema");
  EXPECT_EQ(field(R"({"type": "json_schema", "json_schema": []})"), "response_format.json_schema");
  EXPECT_EQ(field(R"({"type": "json_schema", "json_schema": {"schema": {}, "pattern": "a"}})"),
            "response_format.json_schema.pattern");
  EXPECT_EQ(field(R"({"schema": {"type": "integer"}})"), "response_format");
  EXPECT_EQ(FieldOf(ParseCompletionRequest(
                R"({"prompt": "a", "structured_outputs": {"regex": "a", "pattern": "b"}})")),
            "structured_outputs.pattern");
  for (const char* const key : {"grammar", "json_schema", "regex", "ebnf"}) {
    EXPECT_EQ(
        FieldOf(ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", ")", key, R"(": "x"})"))),
        key);
  }
}

// Members and values follow OpenAI's API reference, chat completions, tool_choice.
TEST(OpenAiRequestTest, AllowedToolsExcludeOtherTools) {
  const auto parse = [](const std::string& allowed) {
    return ParseChatRequest(R"({"messages": [], "tools": [{"function": {"name": "a"}},
        {"function": {"name": "b", "parameters": {"maximum": 1}}}, {"function": {"name": "c"}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": )" +
                            allowed + "}}");
  };
  const auto required = parse(R"({"mode": "required", "tools": [
      {"type": "function", "function": {"name": "c"}},
      {"type": "function", "function": {"name": "b"}}]})");
  ASSERT_TRUE(required.ok()) << required.status();
  const v1::ChatPrompt& chat = required->prompts[0].chat();
  EXPECT_EQ(chat.tool_choice(), v1::TOOL_CHOICE_REQUIRED);
  ASSERT_EQ(chat.tools_size(), 2);
  EXPECT_EQ(chat.tools(0).tool_json(),
            R"({"function": {"name": "b", "parameters": {"maximum": 1}}})");
  EXPECT_EQ(chat.tools(1).tool_json(), R"({"function": {"name": "c"}})");
  // An error of a tool names its position in the body.
  EXPECT_EQ(required->names.Rename("chat.tools[0].parameters_json_schema"),
            "tools[1].function.parameters");
  EXPECT_EQ(required->names.Rename("chat.tools[1].strict"), "tools[2].function.strict");
  const auto automatic =
      parse(R"({"mode": "auto", "tools": [{"type": "function", "function": {"name": "a"}}]})");
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->prompts[0].chat().tool_choice(), v1::TOOL_CHOICE_AUTO);
  EXPECT_EQ(automatic->prompts[0].chat().tools_size(), 1);

  const std::string path = "tool_choice.allowed_tools";
  EXPECT_EQ(FieldOf(parse("null")), path);
  EXPECT_EQ(FieldOf(parse("[]")), path);
  EXPECT_EQ(FieldOf(parse(R"({"tools": []})")), path + ".mode");
  EXPECT_EQ(FieldOf(parse(R"({"mode": "none", "tools": []})")), path + ".mode");
  EXPECT_EQ(FieldOf(parse(R"({"mode": "auto"})")), path + ".tools");
  EXPECT_EQ(FieldOf(parse(R"({"mode": "auto", "tools": []})")), path + ".tools");
  EXPECT_EQ(FieldOf(parse(R"({"mode": "auto", "tools": [{"type": "custom"}]})")),
            path + ".tools[0]");
  EXPECT_EQ(FieldOf(parse(R"({"mode": "auto", "tools": [{"function": {"name": "a"}},
                             {"function": {"name": "d"}}]})")),
            path + ".tools[1].function.name");
}

TEST(OpenAiRequestTest, ParsesReasoningOfEarlierTurnsUnderThreeNames) {
  const auto parse = [](const std::string& members) {
    return ParseChatRequest(R"({"messages": [{"role": "assistant", "content": "x")" + members +
                            "}]}");
  };
  for (const char* const members :
       {R"(, "reasoning_content": "why")", R"(, "reasoning": "why")", R"(, "thinking": "why")",
        R"(, "reasoning_content": null, "reasoning": "why")",
        R"(, "reasoning_content": "", "thinking": "why")",
        R"(, "reasoning": "why", "reasoning_content": "why")"}) {
    const auto parsed = parse(members);
    ASSERT_TRUE(parsed.ok()) << members << parsed.status();
    EXPECT_EQ(parsed->prompts[0].chat().messages(0).reasoning_content(), "why") << members;
  }
  EXPECT_EQ(FieldOf(parse(R"(, "reasoning": {"effort": "low"})")), "messages[0].reasoning");
  EXPECT_EQ(FieldOf(parse(R"(, "thinking": 1)")), "messages[0].thinking");
  EXPECT_EQ(FieldOf(parse(R"(, "reasoning_content": "a", "thinking": "b")")),
            "messages[0].thinking");
}

// OpenAI's API reference requires content except in assistant messages with tool calls.
TEST(OpenAiRequestTest, OnlyAssistantMessagesMayLackContent) {
  const auto parse = [](const std::string& message) {
    return ParseChatRequest(R"({"messages": [)" + message + "]}");
  };
  for (const char* const role : {"user", "system", "developer", "tool"}) {
    EXPECT_EQ(FieldOf(parse(absl::StrCat(R"({"role": ")", role, "\"}"))), "messages[0].content");
    EXPECT_EQ(FieldOf(parse(absl::StrCat(R"({"role": ")", role, R"(", "content": null})"))),
              "messages[0].content");
    EXPECT_TRUE(parse(absl::StrCat(R"({"role": ")", role, R"(", "content": ""})")).ok()) << role;
  }
  EXPECT_TRUE(parse(R"({"role": "assistant", "tool_calls": []})").ok());
}

// In vLLM's stream_options, include_usage defaults to true.
TEST(OpenAiRequestTest, ParsesUsageOptionsOfStreams) {
  const auto parse = [](const std::string& options, const char* stream = "true") {
    return ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", "stream": )", stream,
                                               R"(, "stream_options": )", options, "}"));
  };
  const auto both = parse(R"({"continuous_usage_stats": true, "include_usage": true})");
  EXPECT_TRUE(both->continuous_usage && both->include_usage);
  EXPECT_TRUE(both->prompts[0].output().usage_every_chunk());
  const auto alone = parse(R"({"continuous_usage_stats": true})");
  EXPECT_TRUE(alone->continuous_usage && alone->include_usage);
  const auto declined = parse(R"({"continuous_usage_stats": true, "include_usage": false})");
  EXPECT_FALSE(declined->continuous_usage || declined->include_usage);
  const auto last = parse(R"({"continuous_usage_stats": false, "include_usage": true})");
  EXPECT_TRUE(last->include_usage && !last->continuous_usage);
  EXPECT_FALSE(last->prompts[0].output().usage_every_chunk());
  EXPECT_FALSE(parse(R"({"continuous_usage_stats": true})", "false")
                   ->prompts[0]
                   .output()
                   .usage_every_chunk());
  EXPECT_EQ(FieldOf(parse(R"({"continuous_usage_stats": 1})")),
            "stream_options.continuous_usage_stats");
}

TEST(OpenAiRequestTest, ParsesStructuralTagsInBothForms) {
  const auto parse = [](const std::string& tag) {
    return ParseChatRequest(R"({"messages": [], "response_format": )" + tag + "}");
  };
  const std::string structures = R"({"type": "structural_tag", "triggers": ["<f="], "structures": [
      {"begin": "<f=a>", "schema": {"z": 1, "a": 2}, "end": "</f>"}]})";
  const auto old = parse(structures);
  ASSERT_TRUE(old.ok()) << old.status();
  const v1::StructuralTags& tags = old->prompts[0].constraint().structural_tags();
  ASSERT_EQ(tags.tags_size(), 1);
  EXPECT_EQ(tags.triggers(0), "<f=");
  EXPECT_EQ(tags.tags(0).begin(), "<f=a>");
  EXPECT_EQ(tags.tags(0).json_schema(), R"({"z":1,"a":2})");
  EXPECT_EQ(tags.tags(0).end(), "</f>");
  EXPECT_FALSE(tags.at_least_one() || tags.stop_after_first());
  const auto made = parse(R"({"type": "structural_tag", "format": {"type": "triggered_tags",
      "triggers": ["<"], "at_least_one": true, "stop_after_first": true, "tags": [
        {"begin": "<a>", "content": {"type": "regex", "pattern": "x+"}, "end": ""},
        {"type": "tag", "begin": "<b>", "content": {"type": "grammar", "grammar": "root ::= \"y\""},
         "end": "!"},
        {"begin": "<c>", "content": {"type": "json_schema", "json_schema": true}, "end": ""}]}})");
  ASSERT_TRUE(made.ok()) << made.status();
  const v1::StructuralTags& three = made->prompts[0].constraint().structural_tags();
  EXPECT_TRUE(three.at_least_one() && three.stop_after_first());
  ASSERT_EQ(three.tags_size(), 3);
  EXPECT_EQ(three.tags(0).regex(), "x+");
  EXPECT_EQ(three.tags(1).ebnf_grammar(), "root ::= \"y\"");
  EXPECT_EQ(three.tags(2).json_schema(), "true");
  // vLLM also accepts the structural tag as a string.
  const auto text =
      ParseChatRequest(R"({"messages": [], "structured_outputs": {"structural_tag": )" +
                       JsonQuoted(structures) + "}}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->prompts[0].constraint().structural_tags().tags(0).begin(), "<f=a>");
}

TEST(OpenAiRequestTest, RejectsStructuralTagsByField) {
  const auto field = [](const std::string& tag) {
    return FieldOf(ParseChatRequest(
        R"({"messages": [], "response_format": {"type": "structural_tag", )" + tag + "}}"));
  };
  const auto format = [&](const std::string& members) {
    return field(R"("format": {"type": "triggered_tags", )" + members + "}");
  };
  EXPECT_EQ(field(R"("triggers": [])"), "response_format.triggers");
  EXPECT_EQ(field(R"("format": 1)"), "response_format.format");
  EXPECT_EQ(field(R"("format": {"type": "sequence"})"), "response_format.format.type");
  EXPECT_EQ(field(R"("structures": [], "triggers": [1])"), "response_format.triggers[0]");
  EXPECT_EQ(field(R"("structures": [1], "triggers": [])"), "response_format.structures[0]");
  EXPECT_EQ(field(R"("structures": [{"begin": "", "end": ""}], "triggers": [])"),
            "response_format.structures[0].schema");
  EXPECT_EQ(format(R"("triggers": [], "tags": [], "excludes": ["a"])"),
            "response_format.format.excludes");
  EXPECT_EQ(format(R"("triggers": [], "tags": [], "at_least_one": 1)"),
            "response_format.format.at_least_one");
  EXPECT_EQ(format(R"("triggers": [], "tags": [{"begin": "", "end": ["a"]}])"),
            "response_format.format.tags[0].end");
  EXPECT_EQ(format(R"("triggers": [], "tags": [{"begin": "", "end": "", "content":
                {"type": "any_text"}}])"),
            "response_format.format.tags[0].content.type");
}

TEST(OpenAiRequestTest, GuidedAndStructuredOutputsBecomeConstraints) {
  const auto parse = [](const std::string& fields) {
    return ParseChatRequest(R"({"messages": [], )" + fields + "}");
  };
  const auto constraint = [&](const std::string& fields) {
    return parse(fields)->prompts[0].constraint();
  };
  EXPECT_EQ(constraint(R"("guided_json": {"z": 1, "a": 2})").json_schema(), R"({"z":1,"a":2})");
  EXPECT_EQ(constraint(R"("guided_json": "{}")").json_schema(), "{}");
  EXPECT_EQ(constraint(R"("guided_regex": "a+")").regex(), "a+");
  EXPECT_EQ(constraint(R"("guided_grammar": "root ::= x")").ebnf_grammar(), "root ::= x");
  EXPECT_EQ(constraint(R"("guided_choice": ["a", "b"])").choice().values_size(), 2);
  EXPECT_EQ(constraint(R"("structured_outputs": {"json": {"z": 1, "a": 2}})").json_schema(),
            R"({"z":1,"a":2})");
  EXPECT_TRUE(constraint(R"("structured_outputs": {"json_object": true})").has_json_object());
  EXPECT_EQ(constraint(R"("structured_outputs": {"choice": ["a"]})").choice().values(0), "a");
  EXPECT_EQ(FieldOf(parse(R"("guided_regex": "a", "guided_choice": ["b"])")), "guided_choice");
  EXPECT_EQ(FieldOf(parse(R"("guided_json": {}, "structured_outputs": {"json_object": true})")),
            "structured_outputs.json_object");
  EXPECT_TRUE(constraint(R"("guided_json": {}, "structured_outputs": {"json_object": false})")
                  .has_json_schema());
  EXPECT_EQ(FieldOf(parse(R"("guided_choice": [1])")), "guided_choice[0]");
  EXPECT_EQ(FieldOf(parse(R"("guided_regex": "a", "structured_outputs": {"structural_tag": {}})")),
            "structured_outputs.structural_tag");
  for (const char* member : {"whitespace_pattern", "disable_additional_properties"}) {
    const std::string field = absl::StrCat(R"("structured_outputs": {")", member, R"(": )");
    EXPECT_EQ(FieldOf(parse(field + R"("x"})")), absl::StrCat("structured_outputs.", member));
    EXPECT_EQ(FieldOf(parse(field + "true}")), absl::StrCat("structured_outputs.", member));
    EXPECT_TRUE(parse(field + "false}").ok());
  }
}

TEST(OpenAiRequestTest, ParsesStartAndWhitespaceOfConstraints) {
  const auto parse = [](const std::string& fields) {
    return ParseChatRequest(R"({"messages": [], )" + fields + "}");
  };
  const std::string object = R"("response_format": {"type": "json_object"})";
  const auto constraint = [&](const std::string& fields) {
    const auto parsed = parse(object + ", " + fields);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->prompts[0].constraint();
  };
  EXPECT_EQ(constraint(R"("n": 1)").start(), v1::CONSTRAINT_START_UNSPECIFIED);
  EXPECT_EQ(constraint(R"("constraint_start": "at_start")").start(), v1::CONSTRAINT_START_AT_START);
  EXPECT_EQ(constraint(R"("constraint_start": "after_reasoning")").start(),
            v1::CONSTRAINT_START_AFTER_REASONING);
  const auto whitespace = [&](const std::string& fields) {
    return constraint(fields).whitespace();
  };
  EXPECT_EQ(whitespace(R"("constraint_whitespace": null)"), v1::WHITESPACE_POLICY_UNSPECIFIED);
  EXPECT_EQ(whitespace(R"("constraint_whitespace": "bounded")"), v1::WHITESPACE_POLICY_BOUNDED);
  EXPECT_EQ(whitespace(R"("constraint_whitespace": "compact")"), v1::WHITESPACE_POLICY_COMPACT);
  const auto any = [](const char* value) {
    return absl::StrCat(R"("structured_outputs": {"disable_any_whitespace": )", value, "}");
  };
  EXPECT_EQ(whitespace(any("true")), v1::WHITESPACE_POLICY_COMPACT);
  EXPECT_EQ(whitespace(any("false")), v1::WHITESPACE_POLICY_UNSPECIFIED);
  EXPECT_EQ(parse(R"("guided_regex": "a", "constraint_start": "at_start")")
                ->prompts[0]
                .constraint()
                .start(),
            v1::CONSTRAINT_START_AT_START);

  const std::string regex = R"("guided_regex": "a", )";
  for (const auto& [fields, field] :
       {std::pair(object + R"(, "constraint_start": "behind")", "constraint_start"),
        std::pair(object + R"(, "constraint_start": 1)", "constraint_start"),
        std::pair(std::string(R"("constraint_start": "at_start")"), "constraint_start"),
        std::pair(object + R"(, "constraint_whitespace": "none")", "constraint_whitespace"),
        std::pair(std::string(R"("constraint_whitespace": "compact")"), "constraint_whitespace"),
        std::pair(regex + R"("constraint_whitespace": "compact")", "constraint_whitespace"),
        std::pair(object + ", " + any("true") + R"(, "constraint_whitespace": "bounded")",
                  "constraint_whitespace"),
        std::pair(regex + any("true"), "structured_outputs.disable_any_whitespace"),
        std::pair(object + ", " + any("\"x\""), "structured_outputs.disable_any_whitespace")}) {
    EXPECT_EQ(FieldOf(parse(fields)), field) << fields;
  }
  EXPECT_EQ(parse(object + R"(, "constraint_start": "behind")").status().message(),
            "constraint_start is \"behind\", it must be at_start or after_reasoning");
}

TEST(OpenAiRequestTest, ParsesUnenforcedKeywordOptions) {
  const auto unenforced = [](const std::string& fields) {
    const auto parsed = ParseChatRequest(R"({"messages": [], )" + fields + "}");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed->prompts[0].constraint().unenforced();
  };
  const std::string schema =
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}}, )";
  EXPECT_EQ(unenforced(schema + R"("n": 1)"), v1::UNENFORCED_POLICY_UNSPECIFIED);
  EXPECT_EQ(unenforced(schema + R"("constraint_unenforced": "refuse")"),
            v1::UNENFORCED_POLICY_REFUSE);
  EXPECT_EQ(unenforced(schema + R"("constraint_unenforced": "annotate")"),
            v1::UNENFORCED_POLICY_ANNOTATE);
  EXPECT_EQ(unenforced(R"("guided_json": {}, "constraint_unenforced": "annotate")"),
            v1::UNENFORCED_POLICY_ANNOTATE);
  for (const char* value : {R"("no")", "true", "[]"}) {
    EXPECT_EQ(FieldOf(ParseChatRequest(
                  absl::StrCat(R"({"messages": [], "constraint_unenforced": )", value, "}"))),
              "constraint_unenforced")
        << value;
  }
}

TEST(OpenAiRequestTest, WrongTypesNameTheirField) {
  struct Bad {
    const char* json;
    const char* field;
  };
  for (const Bad& bad :
       {Bad{R"("model": 1)", "model"},
        Bad{R"("temperature": "0")", "temperature"},
        Bad{R"("temperature": true)", "temperature"},
        Bad{R"("top_p": [])", "top_p"},
        Bad{R"("n": 1.5)", "n"},
        Bad{R"("n": "1")", "n"},
        Bad{R"("max_tokens": {})", "max_tokens"},
        Bad{R"("max_tokens": 99999999999)", "max_tokens"},
        Bad{R"("stream": 1)", "stream"},
        Bad{R"("stream_options": true)", "stream_options"},
        Bad{R"("stream_options": {"include_usage": 1})", "stream_options.include_usage"},
        Bad{R"("logprobs": true)", "logprobs"},
        Bad{R"("echo": "yes")", "echo"},
        Bad{R"("stop": 5)", "stop"},
        Bad{R"("stop": ["a", 5])", "stop[1]"},
        Bad{R"("bad_words": "x")", "bad_words"},
        Bad{R"("dry_sequence_breakers": [])", "dry_sequence_breakers"},
        Bad{R"("dry_sequence_breakers": "x")", "dry_sequence_breakers"},
        Bad{R"("dry_penalty_last_n": "1")", "dry_penalty_last_n"},
        Bad{R"("bad_words": ["x", 1])", "bad_words[1]"},
        Bad{R"("logit_bias": [])", "logit_bias"},
        Bad{R"("logit_bias": {"a": 1})", "logit_bias"},
        Bad{R"("logit_bias": {"1": "b"})", "logit_bias"},
        Bad{R"("seed": 0.5)", "seed"},
        Bad{R"("user": 1)", "user"},
        Bad{R"("best_of": 0)", "best_of"},
        Bad{R"("best_of": 2, "n": 3)", "best_of"},
        Bad{R"("best_of": 2, "stream": true)", "best_of"},
        Bad{R"("allowed_token_ids": [])", "allowed_token_ids"},
        Bad{R"("allowed_token_ids": [1, "a"])", "allowed_token_ids[1]"},
        Bad{R"("prompt_logprobs": true)", "prompt_logprobs"},
        Bad{R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"},
        Bad{R"("prompt_logprobs": 1, "logprobs": 2, "echo": true)", "prompt_logprobs"},
        Bad{R"("truncate_prompt_tokens": 0)", "truncate_prompt_tokens"},
        Bad{R"("truncate_prompt_tokens": -2)", "truncate_prompt_tokens"},
        Bad{R"("return_token_ids": 1)", "return_token_ids"},
        Bad{R"("stream_interval": "a")", "stream_interval"},
        Bad{R"("suffix": "x")", "suffix"},
        Bad{R"("stop_token_ids": ["a"])", "stop_token_ids[0]"},
        Bad{R"("cache_salt": 1)", "cache_salt"},
        Bad{R"("priority": "high")", "priority"}}) {
    EXPECT_EQ(FieldOf(ParseCompletionRequest(std::string("{\"prompt\": \"a\", ") + bad.json + "}")),
              bad.field)
        << bad.json;
  }
}

TEST(OpenAiRequestTest, NullIsAbsent) {
  const auto parsed = ParseCompletionRequest(
      R"({"prompt": "a", "max_tokens": null, "stop": null, "logit_bias": null, "n": null,
          "stream_options": null, "logprobs": null, "temperature": null})");
  ExpectPrompt(parsed, "text: 'a' sampling {} stopping {} output { text: true }");
}

TEST(OpenAiRequestTest, RejectsBodiesThatAreNotAnObject) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  for (const std::string& body :
       {std::string(), std::string("["), std::string("[]"), std::string("\"x\""),
        std::string("{\"a\": 1, \"a\": 2}"), std::string("{\"prompt\": \"\xff\"}"),
        std::string("{\"n\": 1e999}"), std::string("{\"prompt\": \"a\"} x"),
        "{\"prompt\": " + deep}) {
    EXPECT_EQ(FieldOf(ParseCompletionRequest(body)), "body") << body;
    EXPECT_EQ(FieldOf(ParseChatRequest(body)), "body") << body;
  }
}

TEST(OpenAiRequestTest, ArbitraryJsonIsBounded) {
  const OpenAiLimits limits = {
      .max_json_nodes = 20, .max_json_depth = 8, .max_logit_bias_entries = 2};
  std::string ids = "1";
  for (int i = 0; i < 1000; ++i) ids += ", 1";
  EXPECT_TRUE(ParseCompletionRequest("{\"prompt\": [" + ids + "]}", limits).ok());
  std::string nodes = "{}";
  for (int i = 0; i < 20; ++i) nodes += ", {}";
  const auto wide = ParseCompletionRequest("{\"prompt\": \"a\", \"b\": [" + nodes + "]}", limits);
  EXPECT_EQ(FieldOf(wide), "body");
  EXPECT_THAT(std::string(wide.status().message()),
              ::testing::HasSubstr("exceeds the limit of 20 keys"));
  const auto deep = ParseChatRequest(
      R"({"messages": [], "chat_template_kwargs": {"a": [[[[[[[]]]]]]]}})", limits);
  EXPECT_EQ(FieldOf(deep), "body");
  EXPECT_THAT(std::string(deep.status().message()), ::testing::HasSubstr("nests more than 8"));
  const auto bias =
      ParseCompletionRequest(R"({"prompt": "a", "logit_bias": {"1": 1, "2": 1, "3": 1}})", limits);
  EXPECT_EQ(FieldOf(bias), "logit_bias");
  EXPECT_THAT(std::string(bias.status().message()),
              ::testing::HasSubstr("has 3 entries, at most 2"));
}

TEST(OpenAiRequestTest, LongUserNamesAreTruncatedBetweenCharacters) {
  const auto parsed = ParseCompletionRequest("{\"prompt\": \"a\", \"user\": \"" +
                                             std::string(63, 'u') + "\xc3\xa4\"}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->prompts[0].labels().at("user"), std::string(63, 'u'));
}

TEST(OpenAiRequestTest, ParsesFieldsOfVllm) {
  const auto parse = [](const std::string& fields) {
    return ParseCompletionRequest(R"({"prompt": "a", )" + fields + "}");
  };
  ExpectPrompt(parse(R"("allowed_token_ids": [5, 6], "truncate_prompt_tokens": 7,
                        "stream_interval": 3)"),
               R"(text: "a" truncate_prompt_tokens: 7 sampling { allowed_token_ids: [5, 6] }
                  stopping {} output { text: true stream_interval_tokens: 3 })");
  ExpectPrompt(parse(R"("truncate_prompt_tokens": -1)"),
               R"(text: "a" truncate_prompt: true sampling {} stopping {} output { text: true })");
  auto parsed = parse(R"("prompt_logprobs": 2, "return_token_ids": true)");
  ExpectPrompt(parsed, R"(text: "a" sampling {} stopping {} output {
                            text: true token_ids: true prompt_logprobs: 2 echo_prompt: true })");
  EXPECT_TRUE(parsed->prompt_logprobs && parsed->token_ids);
  EXPECT_FALSE(parsed->echo || parsed->logprobs);
  EXPECT_EQ(parsed->names.Rename("output.prompt_logprobs"), "prompt_logprobs");
  parsed = parse(R"("best_of": 4, "n": 2)");
  ExpectPrompt(parsed, R"(text: "a" sampling { choice_count: 4 } stopping {} output {
                            text: true logprobs: 0 })");
  EXPECT_EQ(parsed->choices, 4);
  EXPECT_EQ(parsed->returned_choices, 2);
  EXPECT_EQ(parsed->names.Rename("sampling.choice_count"), "best_of");
  // The translator gets an n that it refuses.
  EXPECT_EQ(parse(R"("best_of": 2, "n": 0)")->prompts[0].sampling().choice_count(), 0);
  // Log-probabilities of the answer keep their number.
  EXPECT_EQ(parse(R"("best_of": 2, "logprobs": 3)")->prompts[0].output().logprobs(), 3);
}

TEST(OpenAiRequestTest, ParsesVariablesOfTheTemplate) {
  const auto parse = [](const std::string& fields) {
    return ParseChatRequest(R"({"messages": [], )" + fields + "}");
  };
  const auto vars = [&](const std::string& fields) {
    const auto parsed = parse(fields);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    std::string json;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(
                    parsed->prompts[0].chat().template_vars(), &json)
                    .ok());
    return nlohmann::json::parse(json);
  };
  EXPECT_EQ(vars(R"("reasoning_effort": "high")"),
            nlohmann::json::parse(R"({"reasoning_effort": "high"})"));
  EXPECT_EQ(
      vars(R"("reasoning_effort": "none", "chat_template_kwargs": {"a": 1})"),
      nlohmann::json::parse(R"({"reasoning_effort": "none", "enable_thinking": false, "a": 1})"));
  EXPECT_EQ(vars(R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": true})"),
            nlohmann::json::parse(R"({"enable_thinking": true})"));
  EXPECT_EQ(vars(R"("documents": [{"text": "a", "b": [1]}])"),
            nlohmann::json::parse(R"({"documents": [{"text": "a", "b": [1]}]})"));
  EXPECT_EQ(parse(R"("chat_template": "{{ x }}")")->prompts[0].chat().template_text(), "{{ x }}");
  for (const auto& [fields, field] :
       {std::pair(R"("reasoning_effort": "some")", "reasoning_effort"),
        std::pair(R"("reasoning_effort": "none", "enable_thinking": true)", "reasoning_effort"),
        std::pair(
            R"("reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true})",
            "reasoning_effort"),
        std::pair(R"("enable_thinking": 1)", "enable_thinking"),
        std::pair(R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false})",
                  "enable_thinking"),
        std::pair(R"("documents": {})", "documents"),
        std::pair(R"("documents": [{}, "a"])", "documents[1]"),
        std::pair(R"("chat_template": "")", "chat_template"),
        std::pair(R"("chat_template": 1)", "chat_template")}) {
    EXPECT_EQ(FieldOf(parse(fields)), field) << fields;
  }
}

TEST(OpenAiRequestTest, ParsesTheOlderSpellingOfTools) {
  const auto parsed = ParseChatRequest(R"({"messages": [
      {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
      {"role": "function", "name": "g", "content": "other"},
      {"role": "function", "name": "f", "content": "4"}],
      "functions": [{"name": "f", "parameters": {"z": 1, "a": 2}}, {"name": "g"}],
      "function_call": {"name": "g"}})");
  ExpectPrompt(parsed, R"(chat {
      messages { role: "assistant" tool_calls { id: "call00000" name: "f" arguments_json: "{}" } }
      messages { role: "function" name: "g" content: "other" }
      messages { role: "tool" name: "f" content: "4" tool_call_id: "call00000" }
      tools { tool_json:
        '{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}' }
      tools { tool_json: '{"type": "function", "function": {"name": "g"}}' }
      tool_choice: TOOL_CHOICE_NAMED tool_name: "g" parallel_tool_calls: false }
      sampling {} stopping {} output { text: true parse: true })");
  EXPECT_TRUE(parsed->uses_functions);
  EXPECT_EQ(parsed->names.Rename("chat.tools[1].parameters_json_schema"),
            "functions[1].parameters");
  EXPECT_EQ(parsed->names.Rename("chat.tool_name"), "function_call.name");
  EXPECT_EQ(parsed->names.Rename("constraint.json_schema"), "functions");
  const auto parse = [](const std::string& fields) {
    return ParseChatRequest(R"({"messages": [], )" + fields + "}");
  };
  const auto choice = [&](const std::string& word) {
    return parse(R"("functions": [], "function_call": ")" + word + "\"")
        ->prompts[0]
        .chat()
        .tool_choice();
  };
  EXPECT_EQ(choice("none"), v1::TOOL_CHOICE_NONE);
  EXPECT_EQ(choice("auto"), v1::TOOL_CHOICE_AUTO);
  for (const auto& [fields, field] :
       {std::pair(R"("functions": [], "tools": [])", "functions"),
        std::pair(R"("functions": [], "tool_choice": "none")", "functions"),
        std::pair(R"("function_call": "none")", "function_call"),
        std::pair(R"("functions": [], "function_call": "required")", "function_call"),
        std::pair(R"("functions": [], "function_call": {})", "function_call.name"),
        std::pair(R"("functions": {})", "functions"),
        std::pair(R"("functions": [{}])", "functions[0].name"),
        std::pair(R"("functions": [{"name": "f", "strict": 1}])", "functions[0].strict"),
        std::pair(R"("functions": [{"name": "f", "parameters": []}])",
                  "functions[0].parameters")}) {
    EXPECT_EQ(FieldOf(parse(fields)), field) << fields;
  }
  EXPECT_EQ(FieldOf(ParseChatRequest(R"({"messages": [{"role": "assistant", "tool_calls": [],
                "function_call": {"name": "f"}}]})")),
            "messages[0].function_call");
}

// Modified valid bodies either parse or are rejected with a field.
TEST(OpenAiRequestTest, MutatedBodiesAreParsedOrRejected) {
  const std::string seeds[] = {
      R"({"model":"m","prompt":["a","b"],"max_tokens":7,"temperature":0.5,"n":2,)"
      R"("stop":["a"],"echo":true,)"
      R"("logprobs":1,"logit_bias":{"5":-1},"stream_options":{"include_usage":true},"seed":-9})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}],)"
      R"("tool_calls":[{"id":"c",)"
      R"("function":{"name":"f","arguments":"{}"}}]}],)"
      R"("tools":[{"function":{"name":"f","parameters":{}}}],)"
      R"("chat_template_kwargs":{"a":[1,{"b":null}]},"response_format":{"type":"json_schema",)"
      R"("json_schema":{"schema":{}}},"logprobs":true,"top_logprobs":1})"};
  const std::string words[] = {"null",
                               "true",
                               "[]",
                               "{}",
                               "-1",
                               "1e400",
                               "\"\"",
                               "[[",
                               "\\u0000",
                               "\\ud800",
                               "99999999999999999999",
                               "\"a\":"};
  std::mt19937 random(6);
  int parsed_count = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string body = seeds[i % 2];
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % (body.size() + 1);
      switch (random() % 4) {
        case 0:
          body.insert(at, words[random() % std::size(words)]);
          break;
        case 1:
          body.erase(at, random() % 6);
          break;
        case 2:
          body.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          body.replace(at, random() % 4, words[random() % std::size(words)]);
      }
    }
    for (const auto& parsed : {ParseCompletionRequest(body), ParseChatRequest(body)}) {
      if (parsed.ok()) {
        ++parsed_count;
        EXPECT_FALSE(parsed->prompts.empty());
      } else {
        EXPECT_NE(FieldOf(parsed), "") << body;
      }
    }
  }
  EXPECT_GT(parsed_count, 0);
}

TEST(OpenAiRequestTest, ChoicesOfAllPromptsAreBounded) {
  const auto body = [](int prompts, int n) {
    std::string text = "{\"n\": " + std::to_string(n) + ", \"prompt\": [\"a\"";
    for (int i = 1; i < prompts; ++i) text += ", \"a\"";
    return text + "]}";
  };
  EXPECT_TRUE(ParseCompletionRequest(body(128, 16)).ok());
  EXPECT_EQ(FieldOf(ParseCompletionRequest(body(129, 16))), "prompt");
  EXPECT_EQ(FieldOf(ParseCompletionRequest(body(2, 2147483647))), "prompt");
  EXPECT_EQ(FieldOf(ParseCompletionRequest(body(2049, 1))), "prompt");
  // For one prompt the limit is limits.max_choices, which is checked elsewhere.
  EXPECT_TRUE(ParseCompletionRequest(body(1, 100000)).ok());
}

// Parameters are copied for every prompt, so many prompts with large parameters could exhaust the
// memory.
TEST(OpenAiRequestTest, ParameterBytesTimesPromptsAreBounded) {
  const auto body = [](std::size_t bytes, int prompts) {
    std::string text = R"({"model": ")" + std::string(bytes, 'm') + R"(", "prompt": ["a")";
    for (int i = 1; i < prompts; ++i) text += R"(, "a")";
    return text + "]}";
  };
  EXPECT_TRUE(ParseCompletionRequest(body(10, 2048)).ok());
  EXPECT_TRUE(ParseCompletionRequest(body(1 << 20, 4)).ok());
  const auto refused = ParseCompletionRequest(body(1 << 20, 2048));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("67108864"), std::string::npos) << refused.status();
  EXPECT_FALSE(ParseCompletionRequest(body(10, 2049)).ok());
}

}  // namespace
}  // namespace quire::server
