// How `quire bench` parses other servers' answers and quired's counters.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/quire/bench_counters.h"
#include "tools/quire/bench_target.h"
#include "tools/quire/sse.h"

namespace quire::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = PeerAddress::Kind;

std::vector<std::string> Events(absl::string_view stream, std::size_t piece) {
  SseParser parser;
  std::vector<std::string> events;
  for (std::size_t i = 0; i < stream.size(); i += piece) {
    for (const std::string& event : parser.Feed(stream.substr(i, piece))) events.push_back(event);
  }
  return events;
}

TEST(SseTest, ParsesEventsAtAnySplit) {
  constexpr char kStream[] =
      ": a comment\n\nevent: x\ndata: {\"a\":1}\n\ndata:two\ndata:  lines\nid: 3\n\r\n"
      "database: no\n\ndata\n\ndata: [DONE]\r\n\r\ndata: not ended\n";
  for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
    EXPECT_THAT(Events(kStream, piece), ElementsAre("{\"a\":1}", "two\n lines", "", "[DONE]"));
  }
}

TEST(PeerTest, Address) {
  const auto peer = ParsePeer("llamacpp=http://127.0.0.1:8080/");
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->kind, Kind::kLlamaCpp);
  EXPECT_EQ(peer->url, "http://127.0.0.1:8080");
  EXPECT_EQ(ParsePeer("openai=http://h")->kind, Kind::kOpenAi);
  for (const char* const text : {"", "http://h", "openai=h:1", "grpc=http://h"}) {
    EXPECT_FALSE(ParsePeer(text).ok()) << text;
  }
}

TEST(PeerTest, LlamaCppEvents) {
  const auto token = ParsePeerEvent(
      Kind::kLlamaCpp, R"({"index":0,"content":" a","tokens":[262],"stop":false,"id_slot":-1})");
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->tokens, 1);
  EXPECT_EQ(token->output_tokens, 0);
  const auto end = ParsePeerEvent(
      Kind::kLlamaCpp,
      R"({"content":"","tokens":[],"stop":true,"tokens_predicted":64,"tokens_evaluated":300})");
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->tokens, 0);
  EXPECT_EQ(end->output_tokens, 64);
  EXPECT_EQ(end->prompt_tokens, 300);
  EXPECT_EQ(ParsePeerEvent(Kind::kLlamaCpp, R"({"content":"x"})")->tokens, 1);
  for (const char* const stop : {"0", "null", "\"eos\"", "[true]", "{}"}) {
    const auto odd =
        ParsePeerEvent(Kind::kLlamaCpp,
                       std::string(R"({"content":"x","tokens_predicted":9,"stop":)") + stop + "}");
    ASSERT_TRUE(odd.ok()) << stop;
    EXPECT_EQ(odd->tokens, 1) << stop;
    EXPECT_EQ(odd->output_tokens, 0) << stop;
  }
}

TEST(PeerTest, OpenAiEvents) {
  EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, R"({"choices":[{"text":"a"}],"usage":null})")->tokens, 1);
  // A token has no text while its character is incomplete. A server may report no ids.
  EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, R"({"choices":[{"text":"","token_ids":[200]}]})")->tokens,
            1);
  EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, R"({"choices":[{"text":"a","token_ids":null}]})")->tokens,
            1);
  for (const char* const data :
       {R"({"choices":[{"text":""}]})", R"({"choices":[7]})", R"({"choices":{"text":"a"}})",
        R"({"choices":[{"text":7}],"usage":[1]})", R"({"usage":{"completion_tokens":"5"}})"}) {
    ASSERT_TRUE(ParsePeerEvent(Kind::kOpenAi, data).ok()) << data;
    EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, data)->tokens, 0) << data;
    EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, data)->output_tokens, 0) << data;
  }
  const auto end = ParsePeerEvent(
      Kind::kOpenAi, R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}})");
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->tokens, 0);
  EXPECT_EQ(end->prompt_tokens, 7);
  EXPECT_EQ(end->output_tokens, 5);
}

TEST(PeerTest, ReportsErrorsAndInvalidAnswers) {
  EXPECT_EQ(ParsePeerEvent(Kind::kOpenAi, R"({"error":{"message":"too long"}})")->error,
            "too long");
  EXPECT_EQ(ParsePeerEvent(Kind::kLlamaCpp, R"({"error":"x"})")->error, "\"x\"");
  for (const char* const data : {"", "{", "[1]", "null", "{\"choices\""}) {
    EXPECT_FALSE(ParsePeerEvent(Kind::kOpenAi, data).ok()) << data;
  }
}

TEST(PeerTest, RequestsAreEquivalent) {
  LoadRequest request;
  request.prompt = {5, 6, 7};
  request.output_tokens = 9;
  const auto llama = nlohmann::json::parse(PeerRequest(Kind::kLlamaCpp, "m", request));
  EXPECT_EQ(llama["prompt"], (std::vector<int>{5, 6, 7}));
  EXPECT_EQ(llama["n_predict"], 9);
  EXPECT_EQ(llama["stream"], true);
  EXPECT_EQ(llama["ignore_eos"], true);
  const auto openai = nlohmann::json::parse(PeerRequest(Kind::kOpenAi, "m", request));
  EXPECT_EQ(openai["prompt"], (std::vector<int>{5, 6, 7}));
  EXPECT_EQ(openai["max_tokens"], 9);
  EXPECT_EQ(openai["model"], "m");
  EXPECT_EQ(openai["return_token_ids"], true);
  EXPECT_FALSE(llama.contains("json_schema"));
  EXPECT_FALSE(openai.contains("structured_outputs"));
  LoadRequest constrained = request;
  constrained.schema = R"({"type": "null"})";
  const nlohmann::json schema = {{"type", "null"}};
  const auto llama_with = nlohmann::json::parse(PeerRequest(Kind::kLlamaCpp, "m", constrained));
  EXPECT_EQ(llama_with["json_schema"], schema);
  EXPECT_EQ(llama_with["ignore_eos"], false);
  const auto openai_with = nlohmann::json::parse(PeerRequest(Kind::kOpenAi, "m", constrained));
  EXPECT_EQ(openai_with["structured_outputs"]["json"], schema);
  EXPECT_EQ(openai_with["ignore_eos"], false);
  EXPECT_THAT(PeerRequest(Kind::kOpenAi, "a\xff", request), HasSubstr("\"a\xef\xbf\xbd\""));
}

constexpr char kMetrics[] =
    "# HELP quire_requests_accepted_total x\n"
    "quire_requests_accepted_total{model_name=\"m\"} 12\n"
    "quire_requests_completed_total{model_name=\"m\"} 10\n"
    "quire_requests_failed_total{model_name=\"m\",code=\"A\"} 1\n"
    "quire_requests_failed_total{model_name=\"m\",code=\"B\"} 1\n"
    "quire_prompt_tokens_total{model_name=\"m\",source=\"compute\"} 100\n"
    "quire_prompt_tokens_total{model_name=\"m\",source=\"device\"} 20\n"
    "quire_prompt_tokens_total_other 999\n"
    "quire_generation_tokens_total{model_name=\"m\"} 50\n"
    "quire_kv_cache_pages{state=\"used\"} 3\n"
    "quire_kv_cache_pages{state=\"free\"} 40\n";

TEST(CountersTest, SumsOverLabels) {
  const ServerCounters counters = ParseCounters(kMetrics);
  EXPECT_EQ(counters.accepted, 12);
  EXPECT_EQ(counters.failed, 2);
  EXPECT_EQ(counters.prompt_tokens, 120);
  EXPECT_EQ(counters.used_pages, 3);
}

RequestSample Completed(std::int64_t input, std::int64_t output) {
  RequestSample sample;
  sample.ok = true;
  sample.input_tokens = input;
  sample.output_tokens = output;
  return sample;
}

TEST(CountersTest, AcceptsConsistentCounts) {
  const ServerCounters before = ParseCounters(kMetrics);
  ServerCounters after = before;
  after.accepted += 2;
  after.completed += 2;
  after.prompt_tokens += 30;
  after.generation_tokens += 15;
  const std::vector<RequestSample> samples = {Completed(10, 8), Completed(20, 7)};
  EXPECT_THAT(CheckConservation(before, after, samples), IsEmpty());
  ServerCounters wrong = after;
  wrong.generation_tokens += 1;
  EXPECT_THAT(CheckConservation(before, wrong, samples),
              ElementsAre(HasSubstr("generated tokens of the server and the client: 16 and 15")));
  wrong = after;
  wrong.used_pages += 1;
  wrong.running = 1;
  EXPECT_EQ(CheckConservation(before, wrong, samples).size(), 2u);
  wrong = after;
  wrong.accepted += 1;
  EXPECT_THAT(CheckConservation(before, wrong, samples), ElementsAre(HasSubstr("3 and 2")));
}

TEST(CountersTest, ReportsOnlyExcessCounts) {
  ServerCounters after;
  after.accepted = after.completed = 1;
  after.prompt_tokens = 10;
  after.generation_tokens = 8;
  EXPECT_FALSE(IsPermanentMismatch({}, after, {Completed(10, 8)}));
  EXPECT_FALSE(IsPermanentMismatch({}, after, {Completed(10, 9)}));
  EXPECT_TRUE(IsPermanentMismatch({}, after, {Completed(10, 7)}));
  EXPECT_TRUE(IsPermanentMismatch({}, after, {Completed(9, 8)}));
  EXPECT_TRUE(IsPermanentMismatch({}, after, {}));
  EXPECT_FALSE(IsPermanentMismatch({}, after, {Completed(10, 7), RequestSample{}}));
}

TEST(CountersTest, CancelledRequestsMayExceedTheCounts) {
  ServerCounters after;
  after.accepted = 2;
  after.completed = 1;
  after.cancelled = 1;
  after.prompt_tokens = 30;
  after.generation_tokens = 15;
  RequestSample cancelled;
  cancelled.cancelled = true;
  cancelled.output_tokens = 5;
  EXPECT_THAT(CheckConservation({}, after, {Completed(10, 8), cancelled}), IsEmpty());
  after.generation_tokens = 12;
  EXPECT_EQ(CheckConservation({}, after, {Completed(10, 8), cancelled}).size(), 1u);
}

}  // namespace
}  // namespace quire::client
