// Translation or rejection of each field of the protocol's request.

#include "server/vllm/vllm_request.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/error_reason.h"
#include "engine/request/sampling_params.h"
#include "quire/v1/generation.pb.h"
#include "server/api/request_translator.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace wire = ::vllm::grpc::engine;

wire::GenerateRequest Tokens(std::vector<std::uint32_t> ids = {1, 2, 3}) {
  wire::GenerateRequest message;
  message.mutable_tokenized()->mutable_input_ids()->Assign(ids.begin(), ids.end());
  return message;
}

v1::GenerateRequest Translate(const wire::GenerateRequest& message) {
  v1::GenerateRequest request;
  const absl::Status status = ToGenerateRequest(message, &request);
  EXPECT_TRUE(status.ok()) << status;
  return request;
}

std::string Metadata(const absl::Status& status, absl::string_view key) {
  const auto reason = GetErrorReason(status);
  return reason ? reason->Find(key).value_or("") : "";
}

// Expects INVALID_ARGUMENT that names field and value, in metadata and text.
void ExpectRefused(const wire::GenerateRequest& message, const std::string& field,
                   const std::string& value) {
  v1::GenerateRequest request;
  const absl::Status status = ToGenerateRequest(message, &request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_EQ(Metadata(status, "field"), field);
  EXPECT_EQ(Metadata(status, "value"), value) << field;
  EXPECT_TRUE(absl::StartsWith(status.message(), field + " is " + value)) << status;
}

TEST(VllmRequestTest, TokensAndTheirIds) {
  wire::GenerateRequest message = Tokens({5, 0, 7});
  message.set_request_id("chatcmpl-1");
  message.mutable_tokenized()->set_original_text("not used");
  const v1::GenerateRequest request = Translate(message);
  EXPECT_EQ(request.request_id(), "chatcmpl-1");
  EXPECT_THAT(request.token_ids().ids(), ElementsAre(5, 0, 7));
  EXPECT_FALSE(request.has_text());
}

TEST(VllmRequestTest, Text) {
  wire::GenerateRequest message;
  message.set_text("Once");
  const v1::GenerateRequest request = Translate(message);
  EXPECT_EQ(request.text(), "Once");
  EXPECT_FALSE(request.has_add_special_tokens());
}

// vLLM's servicer uses temperature 1, top_p 1, repetition_penalty 1 and n 1 for unset fields, and
// no default of the model. A field left unset here would take the configuration's default.
TEST(VllmRequestTest, UnsetFieldsAreNeutral) {
  const v1::GenerateRequest request = Translate(Tokens());
  const v1::SamplingParams& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 1);
  EXPECT_EQ(sampling.top_p(), 1);
  EXPECT_EQ(sampling.repetition_penalty(), 1);
  EXPECT_EQ(sampling.choice_count(), 1);
  EXPECT_TRUE(sampling.has_top_k() && sampling.has_min_p());
  EXPECT_TRUE(sampling.has_presence_penalty() && sampling.has_frequency_penalty());
  EXPECT_EQ(sampling.top_k(), 0);
  EXPECT_EQ(sampling.min_p(), 0);
  EXPECT_EQ(sampling.presence_penalty(), 0);
  EXPECT_EQ(sampling.frequency_penalty(), 0);
  EXPECT_FALSE(sampling.has_seed());
  EXPECT_TRUE(sampling.logit_bias().empty());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_EQ(request.stopping().min_tokens(), 0);
  EXPECT_FALSE(request.stopping().ignore_eos());
  const v1::OutputOptions& output = request.output();
  EXPECT_FALSE(output.stream());
  EXPECT_TRUE(output.token_ids());
  EXPECT_FALSE(output.text());
  EXPECT_TRUE(output.has_skip_special_tokens());
  EXPECT_FALSE(output.skip_special_tokens());
  EXPECT_FALSE(output.has_logprobs() || output.has_prompt_logprobs() || output.echo_prompt());
  EXPECT_FALSE(request.has_constraint());
}

TEST(VllmRequestTest, Sampling) {
  wire::GenerateRequest message = Tokens();
  wire::SamplingParams* params = message.mutable_sampling_params();
  params->set_temperature(0);
  params->set_top_p(0.5F);
  params->set_top_k(40);
  params->set_min_p(0.25F);
  params->set_frequency_penalty(-1.5F);
  params->set_presence_penalty(1.25F);
  params->set_repetition_penalty(1.5F);
  params->set_n(3);
  params->set_seed(-7);
  (*params->mutable_logit_bias())[11] = -100;
  (*params->mutable_logit_bias())[12] = 2.5F;
  const v1::GenerateRequest request = Translate(message);
  const v1::SamplingParams& sampling = request.sampling();
  EXPECT_TRUE(sampling.has_temperature());
  EXPECT_EQ(sampling.temperature(), 0);
  EXPECT_EQ(sampling.top_p(), 0.5F);
  EXPECT_EQ(sampling.top_k(), 40);
  EXPECT_EQ(sampling.min_p(), 0.25F);
  EXPECT_EQ(sampling.frequency_penalty(), -1.5F);
  EXPECT_EQ(sampling.presence_penalty(), 1.25F);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5F);
  EXPECT_EQ(sampling.choice_count(), 3);
  EXPECT_EQ(sampling.seed(), -7);
  EXPECT_EQ(sampling.logit_bias().size(), 2u);
  EXPECT_EQ(sampling.logit_bias().at(11), -100);
  EXPECT_EQ(sampling.logit_bias().at(12), 2.5F);
}

TEST(VllmRequestTest, Stopping) {
  wire::GenerateRequest message = Tokens();
  wire::SamplingParams* params = message.mutable_sampling_params();
  params->set_max_tokens(0);
  params->set_min_tokens(4);
  params->add_stop("dog");
  params->add_stop("cat");
  params->add_stop_token_ids(9);
  params->add_stop_token_ids(2147483647);
  params->set_ignore_eos(true);
  params->set_include_stop_str_in_output(true);
  const v1::GenerateRequest request = Translate(message);
  const v1::StoppingParams& stopping = request.stopping();
  EXPECT_TRUE(stopping.has_max_tokens());
  EXPECT_EQ(stopping.max_tokens(), 0);  // explicitly set, so not the default; Generation rejects it
  EXPECT_EQ(stopping.min_tokens(), 4);
  EXPECT_THAT(stopping.stop(), ElementsAre("dog", "cat"));
  EXPECT_THAT(stopping.stop_token_ids(), ElementsAre(9, 2147483647));
  EXPECT_TRUE(stopping.ignore_eos());
  EXPECT_TRUE(stopping.include_stop_text());
}

TEST(VllmRequestTest, Output) {
  wire::GenerateRequest message = Tokens();
  message.set_stream(true);
  wire::SamplingParams* params = message.mutable_sampling_params();
  params->set_skip_special_tokens(true);
  params->set_spaces_between_special_tokens(true);
  params->set_logprobs(0);
  EXPECT_FALSE(Translate(message).output().echo_prompt());
  params->set_prompt_logprobs(2);
  const v1::GenerateRequest request = Translate(message);
  const v1::OutputOptions& output = request.output();
  EXPECT_TRUE(output.stream());
  EXPECT_TRUE(output.skip_special_tokens());
  EXPECT_TRUE(output.has_logprobs());
  EXPECT_EQ(output.logprobs(), 0);
  EXPECT_EQ(output.prompt_logprobs(), 2);
  EXPECT_TRUE(output.echo_prompt());
}

TEST(VllmRequestTest, TruncationKeepsTheEnd) {
  wire::GenerateRequest message = Tokens({1, 2, 3, 4});
  message.mutable_sampling_params()->set_truncate_prompt_tokens(2);
  EXPECT_THAT(Translate(message).token_ids().ids(), ElementsAre(3, 4));
  message.mutable_sampling_params()->set_truncate_prompt_tokens(9);
  EXPECT_THAT(Translate(message).token_ids().ids(), ElementsAre(1, 2, 3, 4));
  for (const int kept : {0, -1}) {
    message.mutable_sampling_params()->set_truncate_prompt_tokens(kept);
    ExpectRefused(message, "sampling_params.truncate_prompt_tokens", std::to_string(kept));
  }
  message.set_text("Once");
  message.mutable_sampling_params()->set_truncate_prompt_tokens(5);
  ExpectRefused(message, "sampling_params.truncate_prompt_tokens", "5");
}

TEST(VllmRequestTest, StructuredOutput) {
  const auto constraint = [](auto set) {
    wire::GenerateRequest message = Tokens();
    set(message.mutable_sampling_params());
    return Translate(message).constraint();
  };
  using Params = wire::SamplingParams*;
  EXPECT_EQ(constraint([](Params p) { p->set_json_schema("{}"); }).json_schema(), "{}");
  EXPECT_EQ(constraint([](Params p) { p->set_regex("a+"); }).regex(), "a+");
  EXPECT_EQ(constraint([](Params p) { p->set_grammar("root ::= x"); }).ebnf_grammar(),
            "root ::= x");
  EXPECT_TRUE(constraint([](Params p) { p->set_json_object(true); }).has_json_object());
  const auto tagged = constraint([](Params p) {
    p->set_structural_tag(R"({"type": "structural_tag", "triggers": ["<f"], "structures": [
        {"begin": "<f>", "schema": {"z": 1, "a": 2}, "end": "</f>"}]})");
  });
  EXPECT_EQ(tagged.structural_tags().tags(0).json_schema(), R"({"z":1,"a":2})");
  EXPECT_EQ(tagged.structural_tags().triggers(0), "<f");
  EXPECT_FALSE(constraint([](Params p) { p->set_json_object(false); }).has_json_object());
  EXPECT_EQ(
      constraint([](Params p) { p->mutable_choice()->add_choices("yes"); }).choice().values(0),
      "yes");
  const auto refused = [](auto set, const std::string& field, const std::string& value) {
    wire::GenerateRequest message = Tokens();
    set(message.mutable_sampling_params());
    ExpectRefused(message, "sampling_params." + field, value);
  };
  refused([](Params p) { p->set_structural_tag("tag"); }, "structural_tag", "tag");
  refused([](Params p) { p->set_structural_tag(R"({"type": "tag"})"); }, "structural_tag.type",
          "\"tag\"");
  refused([](Params p) { p->set_grammar_from_first_token(true); }, "grammar_from_first_token",
          "true");
}

TEST(VllmRequestTest, RejectsMediaAndTransfers) {
  const auto refused = [](auto set, const std::string& field, const std::string& value) {
    wire::GenerateRequest message = Tokens();
    set(&message);
    ExpectRefused(message, field, value);
  };
  using Request = wire::GenerateRequest*;
  refused([](Request r) { r->mutable_mm_inputs(); }, "mm_inputs", "set");
  refused([](Request r) { r->add_extra_mm_inputs(); }, "extra_mm_inputs", "1 entries long");
  refused([](Request r) { r->mutable_media_refs(); }, "media_refs", "set");
  refused([](Request r) { r->mutable_kv_transfer_params(); }, "kv_transfer_params", "set");
  refused([](Request r) { r->set_kv_transfer_params_json("{}"); }, "kv_transfer_params_json", "{}");
  refused([](Request r) { r->set_data_parallel_rank(1); }, "data_parallel_rank", "1");
  refused([](Request r) { r->set_data_parallel_rank(-1); }, "data_parallel_rank", "-1");
  wire::GenerateRequest message = Tokens();
  message.set_data_parallel_rank(0);
  Translate(message);
}

TEST(VllmRequestTest, RejectsNumbersOutsideTheRangeOfTheEngine) {
  const auto refused = [](auto set, const std::string& field) {
    wire::GenerateRequest message = Tokens();
    set(message.mutable_sampling_params());
    ExpectRefused(message, "sampling_params." + field, "4294967295");
  };
  using Params = wire::SamplingParams*;
  refused([](Params p) { p->set_top_k(4294967295U); }, "top_k");
  refused([](Params p) { p->set_n(4294967295U); }, "n");
  refused([](Params p) { p->set_max_tokens(4294967295U); }, "max_tokens");
  refused([](Params p) { p->set_min_tokens(4294967295U); }, "min_tokens");
}

TEST(VllmRequestTest, RejectsIdsOutsideEveryVocabulary) {
  v1::GenerateRequest request;
  absl::Status status = ToGenerateRequest(Tokens({1, 2147483648U}), &request);
  EXPECT_EQ(GetErrorReason(status)->name(), "BAD_TOKEN_ID");
  EXPECT_EQ(Metadata(status, "token_id"), "2147483648");
  EXPECT_EQ(Metadata(status, "position"), "1");
  wire::GenerateRequest message = Tokens();
  message.mutable_sampling_params()->add_stop_token_ids(4294967295U);
  v1::GenerateRequest other;
  status = ToGenerateRequest(message, &other);
  EXPECT_EQ(GetErrorReason(status)->name(), "BAD_TOKEN_ID");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("sampling_params.stop_token_ids[0] is token id 4294967295"));
}

TEST(VllmRequestTest, RejectsMissingInput) {
  v1::GenerateRequest request;
  const absl::Status status = ToGenerateRequest(wire::GenerateRequest(), &request);
  EXPECT_EQ(GetErrorReason(status)->name(), "PROMPT_MISSING");
  EXPECT_EQ(Metadata(status, "field"), "input");
}

// A field of a later version: number 99 of each message that is read.
TEST(VllmRequestTest, RejectsUnknownFieldsByNumber) {
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(99, 1);
  };
  wire::GenerateRequest message = Tokens();
  add(&message);
  ExpectRefused(message, "#99", "set");
  message = Tokens();
  add(message.mutable_sampling_params());
  ExpectRefused(message, "sampling_params.#99", "set");
  message = Tokens();
  add(message.mutable_tokenized());
  ExpectRefused(message, "tokenized.#99", "set");
}

// Rejections by Generation use the gateway's field names.
TEST(VllmRequestTest, EngineErrorsUseTheNamesOfTheProtocol) {
  const engine::ParamLimits limits{.max_choices = 4, .max_logprobs = 5, .vocab_size = 100};
  const auto expect = [](const absl::Status& ours, const std::string& field,
                         const std::string& text) {
    ASSERT_FALSE(ours.ok());
    const absl::Status status = NameVllmFields(ours);
    EXPECT_EQ(status.code(), ours.code());
    EXPECT_EQ(GetErrorReason(status)->reason, GetErrorReason(ours)->reason);
    EXPECT_EQ(Metadata(status, "field"), field);
    EXPECT_TRUE(absl::StartsWith(status.message(), text)) << status;
  };
  engine::SamplingParams sampling;
  sampling.choice_count = 5;
  expect(engine::Validate(sampling, limits), "sampling_params.n", "sampling_params.n is 5");
  sampling.choice_count = 1;
  sampling.top_p = 2;
  expect(engine::Validate(sampling, limits), "sampling_params.top_p", "sampling_params.top_p is 2");
  engine::StoppingParams stopping;
  expect(engine::Validate(stopping, limits), "sampling_params.max_tokens",
         "sampling_params.max_tokens is 0");
  stopping.max_tokens = 1;
  stopping.stop = {""};
  expect(engine::Validate(stopping, limits), "sampling_params.stop",
         "sampling_params.stop[0] has 0 bytes");
  expect(engine::Validate(engine::OutputParams{.logprobs = 6}, limits), "sampling_params.logprobs",
         "sampling_params.logprobs is 6");
  expect(WithReason(absl::InvalidArgumentError("prompt has no token ids"), Reason::kPromptMissing,
                    {{"field", "prompt"}}),
         "input", "prompt has no token ids");
  const absl::Status delayed = NameVllmFields(
      WithReason(absl::ResourceExhaustedError("full"), Reason::kQueueFull, {}, absl::Seconds(3)));
  EXPECT_EQ(GetErrorReason(delayed)->retry_delay, absl::Seconds(3));
  EXPECT_TRUE(NameVllmFields(absl::OkStatus()).ok());
  EXPECT_EQ(NameVllmFields(absl::InternalError("x")), absl::InternalError("x"));
}

}  // namespace
}  // namespace quire::server
