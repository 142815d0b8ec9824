#include "engine/request/sampling_params.h"

#include <cmath>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/testing/reason_of.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

ParamLimits Limits() {
  ParamLimits limits;
  limits.vocab_size = 100;
  limits.max_tokens_per_request = 1000;
  return limits;
}

void ExpectField(const absl::Status& status, const std::string& reason, const std::string& field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_EQ(ReasonOf(status), reason);
  EXPECT_THAT(std::string(status.message()), HasSubstr(field));
}

TEST(SamplingParamsTest, RejectsFloatsOutsideTheirRangeByName) {
  struct Case {
    const char* field;
    float SamplingParams::*member;
    std::vector<float> good, bad;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Case cases[] = {
      {"sampling.temperature",
       &SamplingParams::temperature,
       {0, 1, 100},
       {-0.1f, 100.5f, nan, inf}},
      {"sampling.top_p", &SamplingParams::top_p, {1e-9f, 1}, {0, -1, 1.01f, nan, -inf}},
      {"sampling.min_p", &SamplingParams::min_p, {0, 1}, {-0.01f, 1.1f, nan}},
      {"sampling.top_n_sigma", &SamplingParams::top_n_sigma, {0, 100}, {-0.01f, 101, inf}},
      {"sampling.xtc_probability", &SamplingParams::xtc_probability, {0, 1}, {-0.01f, 1.1f, nan}},
      {"sampling.xtc_threshold", &SamplingParams::xtc_threshold, {0, 1}, {-0.01f, 1.1f, nan}},
      {"sampling.repetition_penalty",
       &SamplingParams::repetition_penalty,
       {0.1f, 10},
       {0, 11, inf}},
      {"sampling.presence_penalty", &SamplingParams::presence_penalty, {-2, 2}, {-2.1f, 2.1f, nan}},
      {"sampling.frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2}, {-3, 3, inf}}};
  for (const Case& c : cases) {
    for (const float value : c.good) {
      SamplingParams params;
      params.*c.member = value;
      EXPECT_TRUE(Validate(params, Limits()).ok()) << c.field << " " << value;
    }
    for (const float value : c.bad) {
      SamplingParams params;
      params.*c.member = value;
      ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", c.field);
    }
  }
}

TEST(SamplingParamsTest, ChecksCountsAndBiases) {
  SamplingParams params;
  params.top_k = -1;
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "sampling.top_k is -1");
  params = {};
  params.choice_count = 17;
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "must be in [1, 16]");
  params = {};
  params.logit_bias = {{5, 100}, {100, 1}};
  ExpectField(Validate(params, Limits()), "BAD_TOKEN_ID", "token id 100");
  params.logit_bias = {{5, 100.5f}};
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "sampling.logit_bias[5]");
  params.logit_bias = {{5, 1}, {5, 2}};
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "token id 5 twice");
  params.logit_bias.clear();
  params.allowed_token_ids = {0, 99, 99};
  EXPECT_TRUE(Validate(params, Limits()).ok());
  params.allowed_token_ids = {1, 100};
  ExpectField(Validate(params, Limits()), "BAD_TOKEN_ID", "allowed_token_ids has token id 100");
  params.allowed_token_ids = {-1};
  ExpectField(Validate(params, Limits()), "BAD_TOKEN_ID", "allowed_token_ids has token id -1");
  params.allowed_token_ids.assign(101, 5);
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "allowed_token_ids is 101 ids");
  params.allowed_token_ids.clear();
  params.banned_text.assign(65, "a");
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "sampling.banned_text");
  params.banned_text = {"a", ""};
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "sampling.banned_text[1]");
  params.banned_text = {std::string(257, 'a')};
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "sampling.banned_text[0]");
  params.banned_text = {"a\xff"};
  ExpectField(Validate(params, Limits()), "BAD_UTF8", "sampling.banned_text[0]");
  params.banned_text.clear();
  params.logit_bias.assign(1025, {1, 0});
  ExpectField(Validate(params, Limits()), "BAD_SAMPLING_PARAM", "1025 entries");
}

TEST(SamplingParamsTest, ChecksStopping) {
  StoppingParams params;
  params.max_tokens = 10;
  params.min_tokens = 10;
  params.stop = {std::string(256, 'x'), "é"};
  EXPECT_TRUE(Validate(params, Limits()).ok());
  params.min_tokens = 11;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "stopping.min_tokens is 11");
  params.min_tokens = 0;
  params.max_tokens = 0;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "stopping.max_tokens is 0");
  params.max_tokens = 1001;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "stopping.max_tokens is 1001");
  params.max_tokens = 10;
  params.stop = {std::string(257, 'x')};
  ExpectField(Validate(params, Limits()), "TOO_MANY_STOPS", "stopping.stop[0] has 257 bytes");
  params.stop = {""};
  ExpectField(Validate(params, Limits()), "TOO_MANY_STOPS", "stopping.stop[0] has 0 bytes");
  params.stop = std::vector<std::string>(17, "a");
  ExpectField(Validate(params, Limits()), "TOO_MANY_STOPS", "17 strings");
  params.stop = {"ok", "bad\xff"};
  ExpectField(Validate(params, Limits()), "BAD_UTF8", "stopping.stop[1]");
  params.stop = {};
  params.stop_token_ids = {-1};
  ExpectField(Validate(params, Limits()), "BAD_TOKEN_ID", "stopping.stop_token_ids[0]");
  params.stop_token_ids = std::vector<std::int32_t>(65, 1);
  ExpectField(Validate(params, Limits()), "TOO_MANY_STOPS", "65 ids");
}

TEST(SamplingParamsTest, ChecksOutput) {
  OutputParams params;
  params.logprobs = 20;
  params.prompt_logprobs = 0;
  EXPECT_TRUE(Validate(params, Limits()).ok());
  params.logprobs = 21;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "output.logprobs is 21");
  params.logprobs = -2;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "[0, 20]");
  params.logprobs = -1;
  params.prompt_logprobs = 21;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "output.prompt_logprobs is 21");
  params.prompt_logprobs = -1;
  params.stream_interval_tokens = 0;
  ExpectField(Validate(params, Limits()), "BAD_PARAMETER", "output.stream_interval_tokens is 0");
}

}  // namespace
}  // namespace quire::engine
