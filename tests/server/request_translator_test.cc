#include "server/api/request_translator.h"

#include <gmock/gmock.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error_reason.h"
#include "quire/v1/generation.pb.h"
#include "server/api/chat_translator.h"

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
  EXPECT_EQ(request->stopping.max_tokens, 512);  // 1024, cut to the limit
  EXPECT_TRUE(request->output.text);
  EXPECT_FALSE(request->output.stream || request->output.token_ids);
  EXPECT_EQ(request->output.logprobs, -1);
  EXPECT_EQ(request->output.stream_interval_tokens, 3);
  EXPECT_TRUE(request->output.skip_special_tokens);
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
  EXPECT_EQ(request->queue_timeout, absl::InfiniteDuration());
  EXPECT_EQ(request->tenant, "default");
}

TEST(RequestTranslatorTest, EveryFieldArrives) {
  const auto request = Translate(R"(
      model: 'default' request_id: 'A-z_0.9:' token_ids { ids: [5, 6] }
      sampling { temperature: 0 top_p: 0.5 top_k: 7 min_p: 0.1 repetition_penalty: 1.5
                 presence_penalty: -1 frequency_penalty: 2 seed: -3 choice_count: 2
                 logit_bias { key: 9 value: -1 } logit_bias { key: 2 value: 4 } }
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

struct Bad {
  const char* message;
  const char* reason;
  const char* field;
};

TEST(RequestTranslatorTest, ConversationsAreReadWhole) {
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
  // Unset, it follows from continue_final_message.
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST(RequestTranslatorTest, TemplateVariablesAreBoundedAsTheyAreRead) {
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

TEST_P(BadFieldTest, IsRefusedByName) {
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
        Bad{"PROMPT chat {}", "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"PROMPT chat { messages { content: 'x' } }", "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"PROMPT chat { messages { role: 'user' } tools { name: 'a b' } }",
            "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"PROMPT chat { messages { role: 'user' } tools {} }", "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"PROMPT chat { messages { role: 'user' } continue_final_message: true "
            "add_generation_prompt: true }",
            "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"PROMPT chat { messages { role: 'user' } template_vars { fields { key: 'a' "
            "value { number_value: nan } } } }",
            "BAD_CHAT_TEMPLATE_INPUT", ""},
        Bad{"constraint { regex: 'a' }", "FEATURE_UNSUPPORTED", "constraint"},
        Bad{"constraint {}", "FEATURE_UNSUPPORTED", "constraint"},
        Bad{"model: 'other'", "MODEL_NOT_FOUND", ""},
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
        Bad{"sampling { repetition_penalty: 0 }", "BAD_SAMPLING_PARAM", "repetition_penalty"},
        Bad{"sampling { repetition_penalty: 11 }", "BAD_SAMPLING_PARAM", "repetition_penalty"},
        Bad{"sampling { presence_penalty: -2.5 }", "BAD_SAMPLING_PARAM", "presence_penalty"},
        Bad{"sampling { frequency_penalty: inf }", "BAD_SAMPLING_PARAM", "frequency_penalty"},
        Bad{"sampling { choice_count: 0 }", "BAD_SAMPLING_PARAM", "choice_count"},
        Bad{"sampling { choice_count: 17 }", "BAD_SAMPLING_PARAM", "choice_count"},
        Bad{"sampling { logit_bias { key: 1 value: 100.5 } }", "BAD_SAMPLING_PARAM", "logit_bias"},
        Bad{"sampling { logit_bias { key: 1 value: nan } }", "BAD_SAMPLING_PARAM", "logit_bias"},
        Bad{"sampling { logit_bias { key: 4096 value: 1 } }", "BAD_TOKEN_ID", ""},
        Bad{"stopping { max_tokens: 0 }", "BAD_PARAMETER", "stopping.max_tokens"},
        Bad{"stopping { max_tokens: 513 }", "BAD_PARAMETER", "stopping.max_tokens"},
        Bad{"stopping { max_tokens: 2 min_tokens: 3 }", "BAD_PARAMETER", "stopping.min_tokens"},
        Bad{"stopping { min_tokens: -1 }", "BAD_PARAMETER", "stopping.min_tokens"},
        Bad{"stopping { stop: '' }", "TOO_MANY_STOPS", ""},
        Bad{"stopping { stop_token_ids: -1 }", "BAD_TOKEN_ID", ""},
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

TEST(RequestTranslatorTest, LongFieldsAreRefusedWithTheirLimit) {
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

TEST(RequestTranslatorTest, IdsComeFromTheFieldThenTheMetadataThenTheServer) {
  CallInfo call = Call();
  call.metadata_request_id = "from-metadata";
  EXPECT_EQ(Translate("text: 'x' request_id: 'own'", call)->id, "own");
  EXPECT_EQ(Translate("text: 'x'", call)->id, "from-metadata");
  call.metadata_request_id = "bad id";
  EXPECT_EQ(GetErrorReason(Translate("text: 'x'", call).status())->Find("field"), "x-request-id");
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
