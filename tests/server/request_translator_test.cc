#include "server/api/request_translator.h"

#include <gmock/gmock.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "quire/v1/generation.pb.h"
#include "server/api/chat_translator.h"
#include "text/tools/declared_tools.h"
#include "text/tools/tool_format.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TranslatorOptions Options() {
  TranslatorOptions options;
  options.model_id = "story";
  options.aliases = {"default"};
  options.sampling_defaults.temperature = 0.7f;
  options.limits.vocab_size = 4096;
  options.limits.max_tokens_per_request = 512;
  options.default_max_tokens = 1024;
  options.stream_interval_tokens = 3;
  return options;
}

CallInfo Call() {
  CallInfo call;
  call.accept_time = absl::FromUnixSeconds(1000);
  return call;
}

v1::GenerateRequest Message(const std::string& text) {
  v1::GenerateRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

absl::StatusOr<engine::Request> Translate(const std::string& text, const CallInfo& call = Call()) {
  return RequestTranslator(Options()).ToRequest(Message(text), call);
}

TEST(RequestTranslatorTest, UnsetFieldsTakeTheirDefaults) {
  const auto request = Translate("text: 'Once'");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& prompt = std::get<engine::TextPrompt>(request->prompt);
  EXPECT_EQ(prompt.text, "Once");
  EXPECT_TRUE(prompt.add_special_tokens && prompt.parse_special_tokens);
  EXPECT_EQ(request->model, "story");
  EXPECT_EQ(request->id.size(), 36u);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(request->sampling.top_p, 1);
  EXPECT_EQ(request->stopping.max_tokens, 512);  // 1024, reduced to the limit
  EXPECT_TRUE(request->output.text);
  EXPECT_FALSE(request->output.stream || request->output.token_ids);
  EXPECT_EQ(request->output.logprobs, -1);
  EXPECT_EQ(request->output.stream_interval_tokens, 3);
  EXPECT_TRUE(request->output.skip_special_tokens);
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
  EXPECT_EQ(request->queue_timeout, absl::InfiniteDuration());
  EXPECT_EQ(request->tenant, "default");
}

TEST(RequestTranslatorTest, EveryFieldReachesTheRequest) {
  const auto request = Translate(R"(
      model: 'default' request_id: 'A-z_0.9:' token_ids { ids: [5, 6] }
      sampling { temperature: 0 top_p: 0.5 top_k: 7 min_p: 0.1 repetition_penalty: 1.5
                 presence_penalty: -1 frequency_penalty: 2 seed: -3 choice_count: 2
                 logit_bias { key: 9 value: -1 } logit_bias { key: 2 value: 4 }
                 banned_text: "x" banned_text: "yz" }
      stopping { max_tokens: 5 min_tokens: 2 stop: 'x' stop_token_ids: 8 ignore_eos: true
                 include_stop_text: true }
      output { stream: true token_ids: true logprobs: 0 prompt_logprobs: 2
               skip_special_tokens: false
               stream_interval_tokens: 4 echo_prompt: true timings: true usage_every_chunk: true }
      priority: -5 cache { skip_read: true skip_write: true salt: 's' }
      queue_timeout { seconds: 2 } timeout { nanos: 500000000 }
      labels { key: 'a' value: 'b' } truncate_prompt: true)");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id, "A-z_0.9:");
  EXPECT_THAT(std::get<engine::TokenPrompt>(request->prompt), ElementsAre(5, 6));
  const engine::SamplingParams& sampling = request->sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.presence_penalty, -1);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(static_cast<std::int64_t>(sampling.seed), -3);
  EXPECT_EQ(sampling.choice_count, 2);
  EXPECT_THAT(sampling.logit_bias, ElementsAre(Pair(2, 4), Pair(9, -1)));
  EXPECT_THAT(sampling.banned_text, ElementsAre("x", "yz"));
  EXPECT_EQ(request->stopping.max_tokens, 5);
  EXPECT_EQ(request->stopping.min_tokens, 2);
  EXPECT_THAT(request->stopping.stop, ElementsAre("x"));
  EXPECT_THAT(request->stopping.stop_token_ids, ElementsAre(8));
  EXPECT_TRUE(request->stopping.ignore_eos && request->stopping.include_stop_text);
  const engine::OutputParams& output = request->output;
  EXPECT_TRUE(output.stream && output.token_ids && output.echo_prompt && output.timings &&
              output.usage_every_chunk);
  EXPECT_FALSE(output.text || output.skip_special_tokens);
  EXPECT_EQ(output.logprobs, 0);
  EXPECT_EQ(output.prompt_logprobs, 2);
  EXPECT_EQ(output.stream_interval_tokens, 4);
  EXPECT_EQ(request->priority, -5);
  EXPECT_TRUE(request->cache.skip_read && request->cache.skip_write);
  EXPECT_EQ(request->cache.salt, "s");
  EXPECT_EQ(request->queue_timeout, absl::Seconds(2));
  EXPECT_EQ(request->deadline, absl::FromUnixMillis(1000500));
  EXPECT_THAT(request->labels, ElementsAre(Pair("a", "b")));
  EXPECT_TRUE(request->truncate_prompt);
}

TEST(RequestTranslatorTest, OptionalSamplersReachTheRequest) {
  const auto plain = Translate("text: 'a'");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->sampling.top_n_sigma, 0);
  EXPECT_EQ(plain->sampling.xtc_probability, 0);
  EXPECT_EQ(plain->sampling.xtc_threshold, 0.1f);
  EXPECT_FALSE(plain->sampling.dry.is_on());
  EXPECT_EQ(plain->sampling.dry.base, 1.75f);
  EXPECT_EQ(plain->sampling.dry.allowed_length, 2);
  EXPECT_EQ(plain->sampling.dry.window_tokens, 0);
  EXPECT_THAT(plain->sampling.dry.breakers, ElementsAre("\n", ":", "\"", "*"));
  const auto request = Translate(R"(
      text: 'a'
      sampling { top_n_sigma: 2 xtc_probability: 0.25 xtc_threshold: 0.5 dry_multiplier: 1
                 dry_base: 2 dry_allowed_length: 3 dry_window_tokens: 4
                 dry_sequence_breakers: '.' })");
  ASSERT_TRUE(request.ok()) << request.status();
  const engine::SamplingParams& sampling = request->sampling;
  EXPECT_EQ(sampling.top_n_sigma, 2);
  EXPECT_EQ(sampling.xtc_probability, 0.25f);
  EXPECT_EQ(sampling.xtc_threshold, 0.5f);
  EXPECT_EQ(sampling.dry.multiplier, 1);
  EXPECT_EQ(sampling.dry.base, 2);
  EXPECT_EQ(sampling.dry.allowed_length, 3);
  EXPECT_EQ(sampling.dry.window_tokens, 4);
  EXPECT_THAT(sampling.dry.breakers, ElementsAre("."));
}

struct Bad {
  const char* message;
  const char* reason;
  const char* field;
};

TEST(RequestTranslatorTest, TranslatesWholeConversations) {
  const auto request = Translate(R"(
      parse_special_tokens: false
      chat { messages { role: 'user' content: 'hi' name: 'ann' }
             messages { role: 'assistant' reasoning_content: 'hm'
                        tool_calls { id: '1' name: 'f' arguments_json: '{}' } }
             messages { role: 'tool' content: 'ok' tool_call_id: '1' }
             tools { name: 'f-2_X' description: 'd' parameters_json_schema: '{"type": "object"}' }
             template_name: 'tool_use' continue_final_message: true
             template_vars {
               fields { key: 'b' value { number_value: 3 } }
               fields { key: 'a' value { list_value {
                 values { number_value: 2.5 } values { null_value: NULL_VALUE }
                 values { struct_value { fields { key: 'x' value { bool_value: true } } } } } } } }
           })");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& prompt = std::get<engine::ChatPrompt>(request->prompt);
  EXPECT_FALSE(prompt.parse_special_tokens);
  const text::ChatInput& chat = prompt.chat;
  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[0].role, "user");
  EXPECT_EQ(chat.messages[0].content, "hi");
  EXPECT_EQ(chat.messages[0].name, "ann");
  EXPECT_EQ(chat.messages[1].reasoning_content, "hm");
  ASSERT_EQ(chat.messages[1].tool_calls.size(), 1u);
  EXPECT_EQ(chat.messages[1].tool_calls[0].id, "1");
  EXPECT_EQ(chat.messages[1].tool_calls[0].name, "f");
  EXPECT_EQ(chat.messages[1].tool_calls[0].arguments_json, "{}");
  EXPECT_EQ(chat.messages[2].tool_call_id, "1");
  ASSERT_EQ(chat.tools.size(), 1u);
  EXPECT_EQ(chat.tools[0].name, "f-2_X");
  EXPECT_EQ(chat.tools[0].description, "d");
  EXPECT_EQ(chat.tools[0].parameters_json, R"({"type": "object"})");
  EXPECT_EQ(chat.template_name, "tool_use");
  EXPECT_EQ(chat.template_vars_json, R"({"a":[2.5,null,{"x":true}],"b":3})");
  // If unset, it is derived from continue_final_message.
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST(RequestTranslatorTest, AcceptsAToolAsOneDocument) {
  const auto request = Translate(R"(
      chat { messages { role: 'user' }
             tools { tool_json: '{"function": {"return": 1, "strict": true, "description": "d", '
                                '"name": "f", '
                                '"parameters": {"b": 1.50, "a": [1, "]}"]} }}' } }
      output { parse: true })");
  ASSERT_TRUE(request.ok()) << request.status();
  const text::ChatTool& tool = std::get<engine::ChatPrompt>(request->prompt).chat.tools.at(0);
  EXPECT_EQ(tool.name, "f");
  EXPECT_TRUE(tool.strict);
  EXPECT_EQ(tool.parameters_json, R"({"b": 1.50, "a": [1, "]}"]})");
  EXPECT_EQ(tool.description, "d");
  EXPECT_EQ(tool.json,
            R"({"function": {"return": 1, "strict": true, "description": "d", "name": "f", )"
            R"("parameters": {"b": 1.50, "a": [1, "]}"]} }})");
}

TEST(RequestTranslatorTest, ParsesAnswersOfKnownFormats) {
  const std::string chat =
      "output { parse: true } chat { messages { role: 'user' } tools { name: 'f' } ";
  TranslatorOptions options = Options();
  options.tool_format = text::FindToolFormat("hermes");
  const RequestTranslator translator(options);
  const auto request = translator.ToRequest(Message(chat + "parallel_tool_calls: false }"), Call());
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->parsing.has_value());
  EXPECT_EQ(request->parsing->format->name, "hermes");
  EXPECT_TRUE(request->parsing->tools->Has("f"));
  EXPECT_TRUE(request->parsing->ends_after_call);
  const auto none = translator.ToRequest(Message(chat + "tool_choice: TOOL_CHOICE_NONE }"), Call());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->parsing->tools->empty());
  EXPECT_TRUE(std::get<engine::ChatPrompt>(none->prompt).chat.tools.empty());
  const auto unknown = Translate(chat + "}");
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_FALSE(unknown->parsing.has_value());
  for (const char* const choice :
       {"tool_choice: TOOL_CHOICE_NAMED tool_name: 'g'", "tool_name: 'f'", "tools { name: 'f' }",
        "tools { name: 'g' parameters_json_schema: '{' }"}) {
    const absl::Status refused =
        translator.ToRequest(Message(chat + choice + "}"), Call()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << choice;
    EXPECT_THAT(refused.message(), HasSubstr("chat.tool")) << choice;
  }
}

TEST(RequestTranslatorTest, StructuralTags) {
  const auto request = Translate(R"(text: 'x' constraint { structural_tags {
      tags { begin: '<a>' regex: 'x' end: '</a>' } tags { begin: '<b>' json_schema: '{}' }
      tags { begin: '<c>' ebnf_grammar: 'g' } triggers: '<' stop_after_first: true } })");
  ASSERT_TRUE(request.ok()) << request.status();
  const engine::ConstraintSpec& spec = *request->constraint;
  EXPECT_EQ(spec.kind, engine::ConstraintKind::kStructuralTags);
  EXPECT_EQ(spec.triggers, std::vector<std::string>{"<"});
  EXPECT_TRUE(spec.stop_after_first_tag);
  EXPECT_FALSE(spec.at_least_one_tag);
  ASSERT_EQ(spec.tags.size(), 3u);
  EXPECT_EQ(spec.tags[0].kind, engine::ConstraintKind::kRegex);
  EXPECT_EQ(spec.tags[0].end, "</a>");
  EXPECT_EQ(spec.tags[1].kind, engine::ConstraintKind::kJsonSchema);
  EXPECT_EQ(spec.tags[1].field, "constraint.structural_tags.tags[1]");
  EXPECT_EQ(spec.tags[2].text, "g");
  const absl::Status refused =
      Translate("text: 'x' constraint { structural_tags { tags { begin: 'a' } } }").status();
  EXPECT_THAT(refused.message(), HasSubstr("structural_tags.tags[0] has no content"));
}

TEST(RequestTranslatorTest, ForcedCallsBecomeAConstraint) {
  const std::string tools =
      "messages { role: 'user' } tools { name: 'f' } tools { name: 'g' parameters_json_schema: "
      "'{\"properties\": {\"b\": {}, \"a\": {}}, \"required\": [\"a\"]}' } ";
  const auto translate = [&](const char* format, const std::string& choice,
                             const std::string& more = "output { parse: true }") {
    TranslatorOptions options = Options();
    options.tool_format = text::FindToolFormat(format);
    return RequestTranslator(options).ToRequest(
        Message(absl::StrCat(more, " chat { ", tools, choice, " }")), Call());
  };
  const auto required = translate("hermes", "tool_choice: TOOL_CHOICE_REQUIRED");
  ASSERT_TRUE(required.ok()) << required.status();
  ASSERT_TRUE(required->constraint.has_value());
  EXPECT_EQ(required->constraint->kind, engine::ConstraintKind::kToolCalls);
  EXPECT_EQ(required->constraint->tool_format->name, "hermes");
  EXPECT_TRUE(required->constraint->starts_after_reasoning);
  EXPECT_TRUE(required->constraint->start_depends_on_prompt);
  EXPECT_FALSE(required->constraint->stop_after_first_tag);
  ASSERT_EQ(required->constraint->tags.size(), 2u);
  EXPECT_EQ(required->constraint->tags[0].begin, "f");
  EXPECT_EQ(required->constraint->tags[0].text,
            R"({"type": "object", "additionalProperties": false})");
  EXPECT_EQ(required->constraint->tags[1].text, R"({"properties":{"b":{},"a":{}},"required":["a"],)"
                                                R"("type":"object","additionalProperties":false})");
  EXPECT_EQ(required->constraint->tags[1].field, "chat.tools[1].parameters_json_schema");
  const auto one =
      translate("hermes", "tool_choice: TOOL_CHOICE_REQUIRED parallel_tool_calls: false");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->constraint->stop_after_first_tag);
  const auto named = translate("hermes", "tool_choice: TOOL_CHOICE_NAMED tool_name: 'g'");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_TRUE(named->constraint->stop_after_first_tag);
  ASSERT_EQ(named->constraint->tags.size(), 1u);
  EXPECT_EQ(named->constraint->tags[0].begin, "g");
  EXPECT_FALSE(translate("hermes", "tool_choice: TOOL_CHOICE_AUTO")->constraint.has_value());
  // Options has no reasoning markers, so reasoning is not allowed in the generic format.
  const auto generic = translate("generic", "tool_choice: TOOL_CHOICE_REQUIRED");
  ASSERT_TRUE(generic.ok()) << generic.status();
  EXPECT_FALSE(generic->constraint->starts_after_reasoning);
  for (const char* const format : {"think", "no such"}) {
    const absl::Status refused = translate(format, "tool_choice: TOOL_CHOICE_REQUIRED").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << format;
    EXPECT_EQ(GetErrorReason(refused)->Find("field"), "chat.tool_choice");
  }
}

TEST(RequestTranslatorTest, StrictToolsConstrainOptionalCalls) {
  const auto translate = [](const char* format, const std::string& tools,
                            const std::string& more = "output { parse: true }") {
    TranslatorOptions options = Options();
    options.tool_format = text::FindToolFormat(format);
    return RequestTranslator(options).ToRequest(
        Message(absl::StrCat(more, " chat { messages { role: 'user' } ", tools, " }")), Call());
  };
  const std::string both =
      "tools { name: 'f' parameters_json_schema: '{\"minimun\": 1}' } tools { name: 'g' strict: "
      "true "
      "parameters_json_schema: '{\"properties\": {\"a\": {}}}' }";
  const auto held = translate("hermes", both);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(held->constraint.has_value());
  EXPECT_EQ(held->constraint->kind, engine::ConstraintKind::kToolCalls);
  EXPECT_TRUE(held->constraint->calls_are_optional);
  EXPECT_TRUE(held->constraint->starts_after_reasoning);
  EXPECT_TRUE(held->constraint->start_depends_on_prompt);
  ASSERT_EQ(held->constraint->tags.size(), 2u);
  EXPECT_EQ(held->constraint->tags[0].text, R"({"type":"object"})");
  EXPECT_EQ(held->constraint->tags[1].text,
            R"({"properties":{"a":{}},"type":"object","additionalProperties":false})");
  EXPECT_EQ(held->constraint->tags[1].field, "chat.tools[1].parameters_json_schema");
  const std::string forced = both + " tool_choice: TOOL_CHOICE_NAMED tool_name: 'g'";
  EXPECT_FALSE(translate("hermes", forced)->constraint->calls_are_optional);
  EXPECT_FALSE(translate("hermes", "tools { name: 'f' }")->constraint.has_value());
  // If no calls are allowed, no call can violate a schema.
  EXPECT_FALSE(
      translate("hermes", both + " tool_choice: TOOL_CHOICE_NONE")->constraint.has_value());
  for (const char* none : {"no such", "think"}) {
    EXPECT_FALSE(translate(none, both)->constraint.has_value()) << none;
  }
  const std::string strict = "tools { name: 'g' strict: true }";
  for (const auto& format : text::ToolFormats()) {
    const auto translated = translate(std::string(format.name).c_str(), strict);
    const bool is_told_by_place =
        format.name == "llama3-json" || format.name == "pythonic" || format.name == "harmony";
    EXPECT_EQ(translated.ok(), !is_told_by_place) << format.name;
    if (translated.ok()) continue;
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(GetErrorReason(translated.status())->Find("field"), "chat.tools[0].strict");
  }
  const auto field = [&](const absl::Status& status) {
    const auto reason = GetErrorReason(status);
    return reason ? reason->Find("field").value_or("") : status.ToString();
  };
  EXPECT_EQ(field(translate("qwen3-coder", both).status()), "chat.tools[0].strict");
  EXPECT_EQ(field(translate("hermes", strict, "").status()), "chat.tools");
  EXPECT_EQ(
      field(
          translate("hermes", strict, "output { parse: true } constraint { regex: 'a' }").status()),
      "constraint");
}

TEST(RequestTranslatorTest, ParsesConstraintStartAndWhitespace) {
  const auto translate = [](const char* format, const std::string& constraint, bool parse = true) {
    TranslatorOptions options = Options();
    options.tool_format = text::FindToolFormat(format);
    return RequestTranslator(options).ToRequest(
        Message(absl::StrCat("output { parse: ", parse ? "true" : "false",
                             " } chat { messages { role: 'user' } } constraint { ", constraint,
                             "}")),
        Call());
  };
  const auto begins_behind = [&](const char* format, const std::string& start) {
    const auto request = translate(format, absl::StrCat("regex: 'a' ", start));
    EXPECT_TRUE(request.ok()) << request.status();
    const engine::ConstraintSpec& spec = *request->constraint;
    EXPECT_EQ(spec.starts_after_reasoning, spec.tool_format != nullptr);
    return spec.starts_after_reasoning;
  };
  const std::string at_start = "start: CONSTRAINT_START_AT_START";
  const std::string after = "start: CONSTRAINT_START_AFTER_REASONING";
  EXPECT_FALSE(begins_behind("hermes", ""));
  EXPECT_TRUE(begins_behind("hermes", after));
  EXPECT_TRUE(begins_behind("think", after));
  EXPECT_FALSE(begins_behind("hermes", at_start));
  for (const char* const format : {"harmony", "pythonic", "no such"}) {
    EXPECT_FALSE(begins_behind(format, ""));
    const absl::Status refused = translate(format, "regex: 'a' " + after).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << format;
    EXPECT_EQ(GetErrorReason(refused)->Find("field"), "constraint.start");
  }
  EXPECT_EQ(translate("hermes", "regex: 'a' " + after, false).status().code(),
            absl::StatusCode::kUnimplemented);
  const auto whitespace = [&](const std::string& constraint) {
    return translate("hermes", constraint)->constraint->whitespace;
  };
  const std::string compact = " whitespace: WHITESPACE_POLICY_COMPACT";
  EXPECT_EQ(whitespace("json_object {}"), engine::JsonWhitespace::kBounded);
  EXPECT_EQ(whitespace("json_object {} whitespace: WHITESPACE_POLICY_BOUNDED"),
            engine::JsonWhitespace::kBounded);
  for (const char* kind : {"json_object {}", "json_schema: '{}'", "structural_tags {}"}) {
    EXPECT_EQ(whitespace(kind + compact), engine::JsonWhitespace::kCompact) << kind;
  }
  for (const char* bad : {"regex: 'a' whitespace: WHITESPACE_POLICY_BOUNDED",
                          "choice { values: 'a' } "
                          "whitespace: WHITESPACE_POLICY_COMPACT",
                          "json_object {} whitespace: 3"}) {
    const absl::Status refused = translate("hermes", bad).status();
    EXPECT_EQ(GetErrorReason(refused)->Find("field"), "constraint.whitespace") << bad;
  }
  const absl::Status refused = translate("hermes", "regex: 'a' start: 3").status();
  EXPECT_EQ(GetErrorReason(refused)->Find("field"), "constraint.start");
}

TEST(RequestTranslatorTest, PromptDeterminesConstraintStartOfReasoningModels) {
  const auto begins = [](const char* format, const char* start, bool parse = true) {
    TranslatorOptions options = Options();
    options.tool_format = text::FindToolFormat(format);
    options.has_reasoning = true;
    const auto request = RequestTranslator(options).ToRequest(
        Message(absl::StrCat("output { parse: ", parse ? "true" : "false",
                             " } chat { messages { role: 'user' } } constraint { regex: 'a' ",
                             start, "}")),
        Call());
    EXPECT_TRUE(request.ok()) << request.status();
    const engine::ConstraintSpec& spec = *request->constraint;
    EXPECT_EQ(spec.starts_after_reasoning, spec.tool_format != nullptr);
    return std::pair(spec.starts_after_reasoning, spec.start_depends_on_prompt);
  };
  const char* const after = "start: CONSTRAINT_START_AFTER_REASONING";
  const char* const at_start = "start: CONSTRAINT_START_AT_START";
  EXPECT_EQ(begins("hermes", ""), std::pair(true, true));
  EXPECT_EQ(begins("hermes", after), std::pair(true, false));
  EXPECT_EQ(begins("hermes", at_start), std::pair(false, false));
  EXPECT_EQ(begins("hermes", "", false), std::pair(false, false));
  EXPECT_EQ(begins("harmony", ""), std::pair(false, false));
}

TEST(RequestTranslatorTest, RejectsImpossibleForcedCallsByField) {
  TranslatorOptions options = Options();
  options.tool_format = text::FindToolFormat("hermes");
  const RequestTranslator translator(options);
  struct Bad {
    const char *tool, *more, *field, *word;
  };
  for (const Bad& bad :
       {Bad{"", "", "chat.tool_choice", "output.parse"},
        Bad{"", "output { parse: true } constraint { regex: 'a' }", "constraint", "tool_choice"},
        Bad{"parameters_json_schema: '{\"type\": \"string\"}'", "output { parse: true }",
            "chat.tools[0].parameters_json_schema", "/type"}}) {
    const absl::Status refused =
        translator
            .ToRequest(Message(absl::StrCat(bad.more,
                                            " chat { messages { role: 'user' } tools { name: 'f' ",
                                            bad.tool, " } tool_choice: TOOL_CHOICE_REQUIRED }")),
                       Call())
            .status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << bad.more;
    EXPECT_EQ(GetErrorReason(refused)->Find("field"), bad.field);
    EXPECT_THAT(refused.message(), HasSubstr(bad.word));
  }
}

TEST(RequestTranslatorTest, BoundsTemplateVariablesWhileReading) {
  const v1::GenerateRequest message = Message(R"(
      chat { messages { role: 'user' }
             template_vars { fields { key: 'a' value { list_value {
               values { struct_value { fields { key: 'b' value { string_value: 'text' } } } }
               values { number_value: 1 } } } } } })");
  const auto refusal = [&](const text::jinja::JsonLimits& limits) {
    return std::string(ToChatInput(message.chat(), limits).status().message());
  };
  EXPECT_EQ(refusal({.max_bytes = 100, .max_nodes = 6, .max_depth = 3}), "");
  EXPECT_EQ(refusal({.max_bytes = 100, .max_nodes = 5, .max_depth = 3}),
            "chat.template_vars has more than 5 keys and values (limits.max_json_nodes)");
  EXPECT_EQ(refusal({.max_bytes = 100, .max_nodes = 6, .max_depth = 2}),
            "chat.template_vars is nested more than 2 deep (limits.max_json_depth)");
  EXPECT_EQ(refusal({.max_bytes = 10, .max_nodes = 6, .max_depth = 3}),
            "chat.template_vars has more than 10 bytes of JSON (limits.max_json_bytes)");
}

class BadFieldTest : public ::testing::TestWithParam<Bad> {};

TEST_P(BadFieldTest, IsRejectedByName) {
  const std::string text = GetParam().message;
  const bool has_prompt = text.find("PROMPT") == 0;
  const auto request = Translate(has_prompt ? text.substr(6) : "text: 'Once' " + text);
  ASSERT_FALSE(request.ok()) << text;
  const auto reason = GetErrorReason(request.status());
  ASSERT_TRUE(reason.has_value()) << request.status();
  EXPECT_EQ(reason->name(), GetParam().reason);
  if (*GetParam().field != '\0') {
    EXPECT_THAT(reason->Find("field").value_or("no field"), HasSubstr(GetParam().field))
        << request.status();
  }
  EXPECT_FALSE(request.status().message().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadFieldTest,
    ::testing::Values(
        Bad{"PROMPT", "PROMPT_MISSING", "prompt"},
        Bad{"PROMPT text: ''", "PROMPT_MISSING", "prompt"},
        Bad{"PROMPT token_ids {}", "PROMPT_MISSING", "prompt"},
        Bad{"PROMPT chat {}", "BAD_CHAT_TEMPLATE_INPUT", "chat.messages"},
        Bad{"PROMPT chat { messages { content: 'x' } }", "BAD_CHAT_TEMPLATE_INPUT",
            "chat.messages[0].role"},
        Bad{"PROMPT chat { messages { role: 'user' } tools { name: 'a b' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].name"},
        Bad{"PROMPT chat { messages { role: 'user' } tools {} }", "BAD_CHAT_TEMPLATE_INPUT",
            "chat.tools[0].name"},
        Bad{"PROMPT chat { messages { role: 'user' } tools { tool_json: '{' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].tool_json"},
        Bad{"PROMPT chat { messages { role: 'user' } tools { tool_json: '[]' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].tool_json"},
        Bad{"PROMPT chat { messages { role: 'user' } "
            "tools { tool_json: '{\"function\": {\"name\": \"a b\"}}' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].name"},
        Bad{"PROMPT chat { messages { role: 'user' } "
            "tools { tool_json: '{\"function\": {\"name\": \"f\", \"parameters\": 1}}' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].tool_json"},
        Bad{"PROMPT chat { messages { role: 'user' } "
            "tools { name: 'f' tool_json: '{\"function\": {\"name\": \"f\"}}' } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.tools[0].tool_json"},
        Bad{"PROMPT chat { messages { role: 'user' } continue_final_message: true "
            "add_generation_prompt: true }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.continue_final_message"},
        Bad{"PROMPT chat { messages { role: 'user' } template_vars { fields { key: 'a' "
            "value { number_value: nan } } } }",
            "BAD_CHAT_TEMPLATE_INPUT", "chat.template_vars"},
        Bad{"constraint {}", "BAD_CONSTRAINT", ""},
        Bad{"model: 'other'", "MODEL_NOT_FOUND", "model"},
        Bad{"request_id: 'with space'", "BAD_PARAMETER", "request_id"},
        Bad{"request_id: 'umlaut\303\244'", "BAD_PARAMETER", "request_id"},
        Bad{"sampling { temperature: -0.1 }", "BAD_SAMPLING_PARAM", "sampling.temperature"},
        Bad{"sampling { temperature: 100.5 }", "BAD_SAMPLING_PARAM", "sampling.temperature"},
        Bad{"sampling { temperature: nan }", "BAD_SAMPLING_PARAM", "sampling.temperature"},
        Bad{"sampling { temperature: inf }", "BAD_SAMPLING_PARAM", "sampling.temperature"},
        Bad{"sampling { top_p: 0 }", "BAD_SAMPLING_PARAM", "sampling.top_p"},
        Bad{"sampling { top_p: 1.01 }", "BAD_SAMPLING_PARAM", "sampling.top_p"},
        Bad{"sampling { top_p: nan }", "BAD_SAMPLING_PARAM", "sampling.top_p"},
        Bad{"sampling { top_k: -1 }", "BAD_SAMPLING_PARAM", "sampling.top_k"},
        Bad{"sampling { min_p: 1.5 }", "BAD_SAMPLING_PARAM", "sampling.min_p"},
        Bad{"sampling { min_p: nan }", "BAD_SAMPLING_PARAM", "sampling.min_p"},
        Bad{"sampling { dry_multiplier: -1 }", "BAD_SAMPLING_PARAM", "sampling.dry_multiplier"},
        Bad{"sampling { dry_base: 0.5 }", "BAD_SAMPLING_PARAM", "sampling.dry_base"},
        Bad{"sampling { dry_allowed_length: 0 }", "BAD_SAMPLING_PARAM", "dry_allowed_length"},
        Bad{"sampling { dry_window_tokens: -1 }", "BAD_SAMPLING_PARAM", "dry_window_tokens"},
        Bad{"sampling { dry_sequence_breakers: '' }", "BAD_SAMPLING_PARAM",
            "dry_sequence_breakers[0]"},
        Bad{"sampling { top_n_sigma: -1 }", "BAD_SAMPLING_PARAM", "sampling.top_n_sigma"},
        Bad{"sampling { top_n_sigma: inf }", "BAD_SAMPLING_PARAM", "sampling.top_n_sigma"},
        Bad{"sampling { xtc_probability: 1.5 }", "BAD_SAMPLING_PARAM", "xtc_probability"},
        Bad{"sampling { xtc_threshold: -0.5 }", "BAD_SAMPLING_PARAM", "xtc_threshold"},
        Bad{"sampling { repetition_penalty: 0 }", "BAD_SAMPLING_PARAM", "repetition_penalty"},
        Bad{"sampling { repetition_penalty: 11 }", "BAD_SAMPLING_PARAM", "repetition_penalty"},
        Bad{"sampling { presence_penalty: -2.5 }", "BAD_SAMPLING_PARAM", "presence_penalty"},
        Bad{"sampling { frequency_penalty: inf }", "BAD_SAMPLING_PARAM", "frequency_penalty"},
        Bad{"sampling { choice_count: 0 }", "BAD_SAMPLING_PARAM", "choice_count"},
        Bad{"sampling { choice_count: 17 }", "BAD_SAMPLING_PARAM", "choice_count"},
        Bad{"sampling { logit_bias { key: 1 value: 100.5 } }", "BAD_SAMPLING_PARAM", "logit_bias"},
        Bad{"sampling { banned_text: '' }", "BAD_SAMPLING_PARAM", "banned_text[0]"},
        Bad{"sampling { logit_bias { key: 1 value: nan } }", "BAD_SAMPLING_PARAM", "logit_bias"},
        Bad{"sampling { logit_bias { key: 4096 value: 1 } }", "BAD_TOKEN_ID",
            "sampling.logit_bias"},
        Bad{"stopping { max_tokens: 0 }", "BAD_PARAMETER", "stopping.max_tokens"},
        Bad{"stopping { max_tokens: 513 }", "BAD_PARAMETER", "stopping.max_tokens"},
        Bad{"stopping { max_tokens: 2 min_tokens: 3 }", "BAD_PARAMETER", "stopping.min_tokens"},
        Bad{"stopping { min_tokens: -1 }", "BAD_PARAMETER", "stopping.min_tokens"},
        Bad{"stopping { stop: '' }", "TOO_MANY_STOPS", "stopping.stop"},
        Bad{"stopping { stop_token_ids: -1 }", "BAD_TOKEN_ID", "stopping.stop_token_ids"},
        Bad{"output { logprobs: 21 }", "BAD_PARAMETER", "output.logprobs"},
        Bad{"output { logprobs: -1 }", "BAD_PARAMETER", "output.logprobs"},
        Bad{"output { prompt_logprobs: 21 }", "BAD_PARAMETER", "output.prompt_logprobs"},
        Bad{"output { stream_interval_tokens: 0 }", "BAD_PARAMETER", "stream_interval_tokens"},
        Bad{"output { stream_interval_tokens: 1025 }", "BAD_PARAMETER", "stream_interval_tokens"},
        Bad{"priority: 101", "BAD_PARAMETER", "priority"},
        Bad{"priority: -101", "BAD_PARAMETER", "priority"},
        Bad{"timeout {}", "BAD_PARAMETER", "timeout"},
        Bad{"timeout { seconds: -1 }", "BAD_PARAMETER", "timeout"},
        Bad{"timeout { seconds: 1 nanos: 2000000000 }", "BAD_PARAMETER", "timeout"},
        Bad{"queue_timeout { seconds: 400000000000 }", "BAD_PARAMETER", "queue_timeout"}));

TEST(RequestTranslatorTest, RejectsLongFieldsWithTheirLimit) {
  v1::GenerateRequest message = Message("text: 'x'");
  message.mutable_cache()->set_salt(std::string(129, 's'));
  RequestTranslator translator(Options());
  EXPECT_THAT(translator.ToRequest(message, Call()).status().message(), HasSubstr("129 bytes"));
  message = Message("text: 'x'");
  (*message.mutable_labels())[std::string(65, 'k')] = "v";
  EXPECT_THAT(translator.ToRequest(message, Call()).status().message(), HasSubstr("65 bytes"));
  message = Message("text: 'x'");
  for (int i = 0; i < 9; ++i) (*message.mutable_labels())[std::to_string(i)] = "v";
  EXPECT_THAT(translator.ToRequest(message, Call()).status().message(), HasSubstr("9 entries"));
  message = Message("text: 'x'");
  message.set_request_id(std::string(129, 'r'));
  EXPECT_FALSE(translator.ToRequest(message, Call()).ok());
}

TEST(RequestTranslatorTest, IdsComeFromFieldThenMetadataThenServer) {
  CallInfo call = Call();
  call.metadata_request_id = "from-metadata";
  EXPECT_EQ(Translate("text: 'x' request_id: 'own'", call)->id, "own");
  EXPECT_EQ(Translate("text: 'x'", call)->id, "from-metadata");
  // An unusable id from a gateway is replaced.
  for (const std::string& odd :
       {std::string("bad id"), std::string("a/b"), std::string("{\"id\": 1}"),
        std::string("\303\244"), std::string(129, 'x')}) {
    call.metadata_request_id = odd;
    const auto request = Translate("text: 'x'", call);
    ASSERT_TRUE(request.ok()) << odd << request.status();
    EXPECT_EQ(request->id.size(), 36u) << odd;
    EXPECT_NE(request->id, Translate("text: 'x'", call)->id);
  }
  EXPECT_NE(Translate("text: 'x'")->id, Translate("text: 'x'")->id);
  call = Call();
  call.request_id_required = true;
  EXPECT_EQ(GetErrorReason(Translate("text: 'x'", call).status())->Find("field"),
            "generate.request_id");
}

TEST(RequestTranslatorTest, TheEarliestDeadlineCounts) {
  CallInfo call = Call();
  call.grpc_deadline = call.accept_time + absl::Seconds(5);
  EXPECT_EQ(Translate("text: 'x'", call)->deadline, call.grpc_deadline);
  EXPECT_EQ(Translate("text: 'x' timeout { seconds: 9 }", call)->deadline, call.grpc_deadline);
  EXPECT_EQ(Translate("text: 'x' timeout { seconds: 2 }", call)->deadline,
            call.accept_time + absl::Seconds(2));
  TranslatorOptions options = Options();
  options.max_request_duration = absl::Seconds(1);
  options.queue_timeout = absl::Seconds(4);
  const auto request = RequestTranslator(options).ToRequest(Message("text: 'x'"), call);
  EXPECT_EQ(request->deadline, call.accept_time + absl::Seconds(1));
  EXPECT_EQ(request->queue_timeout, absl::Seconds(4));
}

TEST(RequestTranslatorTest, SeedsAreDrawnWhenUnset) {
  EXPECT_NE(Translate("text: 'x'")->sampling.seed, Translate("text: 'x'")->sampling.seed);
}

}  // namespace
}  // namespace quire::server
